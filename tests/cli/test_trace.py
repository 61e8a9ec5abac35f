import gc
import json
import pickle
from pathlib import Path

import pytest

from tests.support import commands
from tests.support.golden import assert_golden
from tests.support.traces import Trace, gpu
from training_profiler.cli import main
from training_profiler.trace_analysis.report_views import VIEWS


def training(rank=None, waits=20):
    top = {} if rank is None else {"distributedInfo": {"rank": rank, "world_size": 2}}
    trace = Trace(deviceProperties=[gpu()], **top)
    for i in range(3):
        at = 200 * i
        trace.step(i + 1, at, 200).mark("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", at, 60)
        trace.op("aten::mm", at + 60, 20, **{"Input Dims": [[2, 3]]})
        trace.kernel("volta_sgemm_64x64_nt", at + 70, 100, launched=(at + 62, 2))
        trace.kernel("ncclDevKernel_AllReduce_Sum_f32_RING_LL", at + 170, waits, launched=(at + 75, 2))
        trace.memory(at + 70, 1, **{"Total Allocated": 2**20, "Total Reserved": 2**21})
    return trace


def printed(capsys, *words):
    assert main(["trace", *map(str, words)]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    return out


def titles(text):
    return [line.strip("= ") for line in text.splitlines() if line.startswith("===")]


def refused(capsys, *words):
    return commands.refused(capsys, "trace", *words).removeprefix("training-profiler: ").rstrip("\n")


@pytest.fixture
def path(tmp_path):
    return training().write(tmp_path)


@pytest.fixture
def folder(tmp_path):
    for rank, waits in ((0, 30), (1, 10)):
        training(rank, waits).write(tmp_path, f"rank{rank}.pt.trace.json.gz")
    (tmp_path / "settings.json").write_text("{}")
    return tmp_path


def test_trace_is_reported_in_three_views(path, capsys):
    out = printed(capsys, path)
    assert titles(out) == ["Overview", "Trace", "Recommendations"]
    assert "GPU utilization: 60.0% of the steps" in out
    assert "data loader: 0.120 ms (75.0%)\n  python between launches: 0.020 ms (12.5%)" in out
    assert "30.0% of step time is spent waiting for batches from a DataLoader without" in out


@pytest.mark.parametrize("view", VIEWS)
def test_each_view_can_be_printed_alone_and_explains_what_is_missing(view, path, tmp_path, capsys):
    out = printed(capsys, path, "--view", view)
    assert out.startswith(f"=== {view.replace('-', ' ').capitalize()} ===\n")
    assert len(out.splitlines()) > 1
    out = printed(capsys, Trace().op("a", 0, 1).write(tmp_path), "--view", view)
    assert len(out.splitlines()) > 1
    assert "nan" not in out
    assert "None" not in out


def test_critical_path_over_ranks_comes_first(folder, capsys):
    out = printed(capsys, folder, "--view", "critical-path")
    assert out.startswith("=== Critical path over ranks ===\n")
    assert "What determines the length of 3 steps over 2 ranks" in out
    assert out.count("=== Critical path ===") == 2
    assert max(map(len, out.splitlines())) <= 80
    found = json.loads(printed(capsys, folder, "--json").splitlines()[0])["critical_path_over_ranks"]
    assert sum(found["ranks_ms"].values()) == pytest.approx(found["wall_ms"])
    assert "the ranks are in perfect balance" in {row["change"] for row in found["what_if"]}


def test_unknown_critical_path_says_why(folder, capsys):
    path = Trace(distributedInfo={"rank": 1, "world_size": 2}).kernel("k", 0, 5).write(folder, "rank1.pt.trace.json.gz")
    for given, key, why in (
        (path, "critical_path", "it has no events of the host"),
        (folder, "critical_path_over_ranks", "of rank 1, it has no events of the host"),
    ):
        assert f"is unknown: {why}." in " ".join(printed(capsys, given, "--view", "critical-path").split())
        assert json.loads(printed(capsys, given, "--json").splitlines()[0])[key] == {"why_not": why}


def test_unrecorded_device_is_left_out(tmp_path, capsys):
    path = Trace().op("aten::mm", 0, 5).write(tmp_path)
    assert titles(printed(capsys, path)) == ["Overview", "Operators", "Recommendations"]
    assert "device" not in printed(capsys, path, "--view", "operators")
    found = json.loads(printed(capsys, path, "--json"))
    assert found["operators"][0] | {"section": None} == {
        "name": "aten::mm", "calls": 1, "host_self_ms": 0.005, "host_total_ms": 0.005,
        "device_self_ms": None, "device_total_ms": None, "section": None,
    }  # fmt: skip
    assert {found[key] for key in ("busy_ms", "compute_union_ms", "comm_union_ms", "kernel_sum_ms")} == {None}


def test_json_has_one_object_per_file_with_every_figure(folder, capsys):
    lines = printed(capsys, folder, "--json").splitlines()
    found = [json.loads(line, parse_constant=pytest.fail) for line in lines]
    assert [trace["rank"] for trace in found] == [0, 1]
    assert {"checklist", "recommendations", "gaps", "unclassified_pct", "devices", "memory"} <= found[0].keys()
    assert {gap["cause"] for gap in found[0]["gaps"]} == {"data loader"}
    assert found[0]["communication_over_ranks"] == [
        {"kind": "all_reduce", "count": 3, "transfer_us": 10.0, "waiting_us": 10.0, "waited_for_rank": 1}
    ]


def test_ranks_of_a_folder_are_one_report_and_a_view_is_of_each_file(folder, capsys):
    out = printed(capsys, folder)
    assert out.startswith("=== Overview of 2 traces ===\n")
    assert "rank 0" in out
    assert "Communication over ranks" in titles(out)
    assert "- (all; most on rank 0) " in out
    view = printed(capsys, folder, "--view", "kernels")
    assert titles(view).count("Kernels") == 2
    assert "##### rank1.pt.trace.json.gz" in view


def test_traces_of_two_jobs_or_of_one_rank_are_not_compared_as_ranks(folder, capsys):
    trace = training(5)
    trace.top["distributedInfo"]["world_size"] = 8
    other = trace.write(folder, "another.pt.trace.json")
    out = printed(capsys, folder)
    assert "(rank0.pt.trace.json.gz) 15.0% of step time" in out
    assert "over ranks" not in out
    other.unlink()
    training(0).write(folder, "later.pt.trace.json")
    out = printed(capsys, folder)
    assert "over ranks" not in out
    assert "2 files are of rank 0: ranks are not compared." in out


def test_captures_of_run_folder_are_analysed_and_without_any_it_says_how_to_capture(tmp_path, capsys):
    for name in ("meta.json", "report.json", "rank0.jsonl"):
        (tmp_path / name).write_text("{}")
    assert "captured no steps; RECTIFIED_FLOW_PROFILE_CAPTURE=steps=100-103" in refused(capsys, tmp_path)
    (tmp_path / "captures").mkdir()
    training().write(tmp_path / "captures", "step5-8-rank0.pt.trace.json.gz")
    assert "step5-8-rank0.pt.trace.json.gz" in printed(capsys, tmp_path).splitlines()[1]


def test_sort_option_orders_operators(path, capsys):
    lines = printed(capsys, path, "--view", "operators", "--sort", "name").splitlines()
    assert [line.split()[0] for line in lines[3::2]][:2] == ["aten::mm", "cudaLaunchKernel"]
    found = json.loads(printed(capsys, path, "--json", "--sort", "calls"))
    assert [operator["name"] for operator in found["operators"]] == ["cudaLaunchKernel", "aten::mm"]


def test_garbage_collector_is_restored(path, tmp_path, capsys):
    printed(capsys, path)
    assert gc.isenabled()
    refused(capsys, tmp_path / "absent.json")
    assert gc.isenabled()


def test_two_traces_are_compared_per_step(path, tmp_path, capsys):
    after = training(waits=10).write(tmp_path, "after.json")
    out = printed(capsys, path, "--compare", after)
    assert "before: a.pt.trace.json (3 steps)" in out
    assert "GPU utilization in steps: 60.0% before, 55.0% after" in out
    found = json.loads(printed(capsys, path, "--compare", after, "--json"))["differences"][2]
    assert (found["name"], found["difference_ms"]) == ("exposed communication", pytest.approx(-0.01))


def test_two_folders_are_compared_rank_by_rank_and_not_with_other_ranks(folder, tmp_path, capsys):
    out = printed(capsys, folder, "--compare", folder)
    assert [line for line in out.splitlines() if line.startswith("before")] == [
        f"before: rank{rank}.pt.trace.json.gz (3 steps)" for rank in (0, 1)
    ]
    for ranks, why in (((0, 5), "are of different ranks"), ((None, None), "are not of one rank each")):
        second = tmp_path / why
        second.mkdir()
        for name, rank in zip(("a.json", "b.json"), ranks, strict=True):
            training(rank).write(second, name)
        assert refused(capsys, folder, "--compare", second).endswith(f"{why}; compare them file by file")


def test_bad_file_in_folder_leaves_no_partial_report(folder, capsys):
    (folder / "rank2.pt.trace.json.gz").write_bytes(b"")
    assert refused(capsys, folder).endswith(
        "rank2.pt.trace.json.gz is empty: was the training stopped before the trace was written?"
    )


def snapshot_file(folder):
    stack = [{"filename": "train.py", "line": 9, "name": "main"}]
    piece = {"size": 2**21, "requested_size": 2**20, "state": "active_allocated", "frames": stack, "address": 512}
    path = folder / "dump.pickle"
    path.write_bytes(pickle.dumps({"segments": [{"total_size": 2**21, "address": 512, "blocks": [piece]}]}))
    return path


def test_memory_snapshot_is_reported_alone_and_with_a_trace(path, tmp_path, capsys):
    snapshot = snapshot_file(tmp_path)
    alone = printed(capsys, "--memory-snapshot", snapshot)
    assert "dump.pickle, device 0: 2.0 MiB reserved in 1 segment" in alone
    both = printed(capsys, path, "--memory-snapshot", snapshot)
    assert both.startswith("=== Overview ===")
    assert alone.removeprefix("=== Memory ===") in both
    (found,) = json.loads(printed(capsys, path, "--json", "--memory-snapshot", snapshot))["memory_snapshot"]
    assert found["by_place"] == [{"place": "train.py:9 in main", "phase": "elsewhere", "bytes": 2**20, "blocks": 1}]
    assert json.loads(printed(capsys, "--json", "--memory-snapshot", snapshot))["memory_snapshot"] == [found]


def test_threshold_can_be_changed(path, capsys):
    assert "of step time is spent waiting for batches" in printed(capsys, path)
    assert "of step time is spent waiting" not in printed(capsys, path, "--threshold", "data-loading-bound=0.4")
    found = json.loads(printed(capsys, path, "--json", "--threshold", "data-loading-bound=0.4, gpu-idle=0.1"))
    assert not {"data-loading-bound", "gpu-idle"} & {finding["code"] for finding in found["recommendations"]}


UNUSABLE = (
    "",
    "--memory-snapshot x --view memory",
    "--memory-snapshot nowhere",
    "t --compare x --threshold gpu-idle=1",
    "t --compare x --view kernels",
    "t --compare x --sort name",
    "t --json --view kernels",
    "t --sort name",
    "t --threshold gpu-idel=1",
    "t --threshold gpu-idle=much",
)


def test_unusable_arguments_give_one_line_each(capsys):
    lines = [f"{words}: {refused(capsys, *words.split())}\n" for words in UNUSABLE]
    assert_golden(Path(__file__).parents[1] / "golden" / "trace_arguments.txt", "".join(lines))
