"""The files that `training-profiler trace` writes: a page, tables, an annotated copy."""

import csv
import gzip
import json
import re

import pytest

from tests.support.commands import refused
from tests.support.simulated_ranks import KERNEL, Job, Rank, simulated_job
from tests.support.simulated_training import Loop, simulated
from tests.support.traces import Trace
from training_profiler.cli import main
from training_profiler.trace_analysis.critical_path import critical_path
from training_profiler.trace_analysis.report_figures import trace_data
from training_profiler.trace_analysis.trace import analyse

LOOP = Loop(loader_us=900, kernels=3, kernel_us=100)


@pytest.fixture
def path(tmp_path):
    return simulated(LOOP)[0].write(tmp_path)


def write(*words):
    assert main(["trace", *map(str, words)]) == 0


def rows(path):
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_csv_has_a_row_for_each_gap_kernel_operator_and_step(path, tmp_path, capsys):
    folder = tmp_path / "new" / "tables"
    write(path, "--csv", folder)
    assert capsys.readouterr().out.split() == [
        str(folder / f"{name}.csv")
        for name in (
            "steps", "operators", "kernels", "gaps", "idle_at_ends", "roofline", "sections", "critical_path", "what_if"
        )
    ]  # fmt: skip
    found = analyse(path)
    for name, places in (("gaps", found.gaps), ("idle_at_ends", found.edges)):
        assert [(float(row["length_ms"]), row["cause"]) for row in rows(folder / f"{name}.csv")] == [
            (place.length_ns / 1e6, "data loader") for place in places
        ]
    assert len(rows(folder / "steps.csv")) == LOOP.steps
    (kernel,) = rows(folder / "kernels.csv")
    assert (kernel["kind"], int(kernel["calls"])) == ("matmul", LOOP.steps * LOOP.kernels)
    assert {row["operator"] for row in rows(folder / "operators.csv")} == {"aten::mm", "cudaLaunchKernel"}
    (rate,) = rows(folder / "roofline.csv")
    assert (rate["name"], float(rate["device_ms"])) == ("aten::mm", float(kernel["total_ms"]))
    assert rate["tflop_per_s"] == ""
    assert "shapes" in rate["lacks"]


def test_files_have_the_critical_path_and_what_a_change_brings(path, tmp_path, capsys):
    write(path, "--csv", tmp_path / "csv", "--html", tmp_path / "page.html")
    expected = trace_data(analyse(path))["critical_path"]
    links = rows(tmp_path / "csv" / "critical_path.csv")
    assert [float(row["ms"]) for row in links] == [link["ms"] for link in expected["links"]]
    changes = rows(tmp_path / "csv" / "what_if.csv")
    assert [(row["change"], float(row["wall_ms"])) for row in changes] == [
        (found["change"], found["wall_ms"]) for found in expected["what_if"]
    ]
    assert float(changes[0]["step_ms"]) == pytest.approx(expected["what_if"][0]["wall_ms"] / LOOP.steps)
    text = (tmp_path / "page.html").read_text("utf-8")
    assert "Critical path: what determines the length" in text
    assert "data loading takes no time" in text


def test_files_of_several_ranks_say_whom_they_wait_for(tmp_path, capsys):
    collective = {"Collective name": "allreduce", "Process Group Name": "default"}
    for rank, wait_us in enumerate((10, 90, 90)):
        trace = Trace(distributedInfo={"rank": rank, "world_size": 3}).step(0, 0, 200)
        trace.op("c10d::allreduce_", 0, 5).kernel(
            "ncclDevKernel_AllReduce", 100 - wait_us, wait_us, launched=(1, 2), **collective
        )
        trace.write(tmp_path, f"rank{rank}.pt.trace.json")
    write(tmp_path, "--csv", tmp_path / "csv", "--html", tmp_path / "page.html")
    (row,) = rows(tmp_path / "csv" / "over_ranks.csv")
    assert (row["kind"], row["waited_for"]) == ("all_reduce", "rank 0: 100%")
    assert float(row["waiting_ms"]) == pytest.approx((0 + 0.08 + 0.08) / 3)
    assert "rank 0: 100%" in (tmp_path / "page.html").read_text("utf-8")


def test_files_of_several_ranks_have_the_path_over_them(tmp_path, capsys):
    for rank, trace in enumerate(simulated_job(Job([Rank(), Rank(kernel_us=500)]))[0]):
        trace.write(tmp_path, f"rank{rank}.pt.trace.json")
    assert "--annotate takes one trace" in refused(capsys, "trace", tmp_path, "--annotate", tmp_path / "x.json")
    write(tmp_path, "--csv", tmp_path / "csv", "--html", tmp_path / "page.html")
    names = {path.name for path in (tmp_path / "csv").glob("*.steps.csv")}
    assert names == {"rank0.pt.trace.steps.csv", "rank1.pt.trace.steps.csv"}
    links = rows(tmp_path / "csv" / "critical_path_over_ranks.csv")
    assert sum(float(row["share"]) for row in links) == pytest.approx(1)
    assert (links[0]["rank"], links[0]["name"]) == ("1", KERNEL)
    changes = {row["name"] or row["change"] for row in rows(tmp_path / "csv" / "what_if_over_ranks.csv")}
    assert {"forward of rank 1", "the ranks are in perfect balance"} <= changes
    jumps = rows(tmp_path / "csv" / "jumps_over_ranks.csv")
    assert {row["waited_for_rank"] for row in jumps} == {"1"}
    assert "Critical path over ranks: what determines the length" in (tmp_path / "page.html").read_text("utf-8")


def test_page_loads_nothing_and_has_findings_and_tables(path, tmp_path, capsys):
    page = tmp_path / "page.html"
    write(path, "--html", page)
    text = page.read_text("utf-8")
    assert not re.search(r"""(src|href)\s*=\s*["']?(https?:)?//""", text)
    assert "default-src &#x27;none&#x27;" in text or "default-src 'none'" in text
    assert "is spent waiting for batches" in text
    assert "Not checked, because the trace lacks:" in text
    assert text.count("<table>") == 9
    assert text.count(">data loader</td>") == len(analyse(path).idle_times)


def test_page_of_incomplete_trace_says_so_and_names_are_escaped(tmp_path, capsys):
    trace, _ = simulated(Loop(loses=frozenset(range(20)), is_marked=False))
    path = trace.op("<script>alert(1)</script>", 0, 1).op("=HYPERLINK(1)", 5, 1).write(tmp_path)
    write(path, "--html", tmp_path / "page.html", "--csv", tmp_path)
    text = (tmp_path / "page.html").read_text("utf-8")
    assert "Incomplete: 20 of 40 kernel launches have no kernel." in text
    assert "No steps are marked: shares are of the recording." in text
    assert "<script>alert" not in text
    assert "&lt;script&gt;alert" in text
    assert "'=HYPERLINK(1)" in {row["operator"] for row in rows(tmp_path / "operators.csv")}  # no formula
    unlaunched = Trace().step(0, 0, 100).kernel("k", 10, 50)
    write(unlaunched.write(tmp_path), "--html", tmp_path / "page.html")
    assert re.search(r"Unknown: [^<]*launch", (tmp_path / "page.html").read_text("utf-8"))  # the critical path


@pytest.mark.parametrize("name", ["a.pt.trace.json", "a.pt.trace.json.gz"])
def test_annotated_copy_has_all_events_and_the_gaps_with_their_causes(name, tmp_path, capsys):
    trace, _ = simulated(LOOP)
    trace.copy("HtoD (Pinned -> Device)", 10, 2, bytes=6000)
    path = trace.write(tmp_path, name)
    copy = tmp_path / f"copy.{name}"
    write(path, "--annotate", copy)
    data = copy.read_bytes()
    events = json.loads(gzip.decompress(data) if name.endswith(".gz") else data)["traceEvents"]
    added = [event for event in events if event["pid"] == "training-profiler"]
    assert [event for event in events if event["pid"] != "training-profiler"] == trace.events
    gaps = [event for event in added if event.get("cat") == "gap"]
    found = analyse(path)
    spans = [event for event in added if event.get("cat") == "critical_path"]
    assert round(sum(event["dur"] for event in spans) * 1000) == critical_path(found.graph).wall_ns
    assert {(event["name"], event["args"]["kind"]) for event in spans} == {
        (link.name or link.kind, link.kind) for link in critical_path(found.graph).links
    }
    assert [(round(e["ts"] * 1000), round(e["dur"] * 1000), e["name"]) for e in gaps] == [
        (place.begin_ns, place.length_ns, place.cause) for place in found.gaps
    ]
    rates = [event["args"]["GB/s"] for event in added if event["name"] == "copies of device 0"]
    assert rates == [3.0, 0.0]  # 6000 bytes in 2 us
    after = trace_data(analyse(copy))
    before = trace_data(found)
    assert {key for key in before if before[key] != after[key]} == {"file", "n_events"}


def test_queued_work_is_counted(tmp_path, capsys):
    trace = Trace().kernel("k", 10, 30, launched=(0, 1)).kernel("k", 40, 5, launched=(2, 1))
    trace.kernel("k", 45, 5, launched=(4, 1))
    write(trace.write(tmp_path), "--annotate", tmp_path / "copy.json")
    events = json.loads((tmp_path / "copy.json").read_text())["traceEvents"]
    queue = [(e["ts"], e["args"]["launched"]) for e in events if e["name"] == "queued work of device 0"]
    assert queue == [(0, 1), (2, 2), (4, 3), (10, 2), (40, 1), (45, 0)]


def test_times_since_1970_stay_exact(tmp_path, capsys):
    at = 1_623_143_000_123_456
    path = tmp_path / "a.json"
    trace = Trace().kernel("k", 1, 1).kernel("k", 2, 1)
    text = trace.text().replace('"ts": 1', f'"ts": {at}.001').replace('"ts": 2', f'"ts": {at + 100}.002')
    path.write_text(text)
    write(path, "--annotate", tmp_path / "copy.json")
    assert f'"ts": {at + 1}.001, "dur": 99.001' in (tmp_path / "copy.json").read_text()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--html", "x", "--json"), "--html, --csv and --annotate write files: leave the options that print out"),
        (("--csv", "x", "--view", "kernels"), "write files"),
        (("--annotate", "PATH"), "is the trace that is read; write to another file"),
        (("--html", "PATH/x.html"), "trace.json: File exists"),
    ],
)
def test_unusable_files_give_one_line(words, message, path, capsys):
    before = path.read_bytes()
    words = [word.replace("PATH", str(path)) for word in words]
    assert message in refused(capsys, "trace", str(path), *words)
    assert path.read_bytes() == before
