"""Counters of traces: who wrote them how, what they say beside the device's work, and what is not read."""

import csv
import io
import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.traces import QUICK, Trace
from training_profiler.cli import main
from training_profiler.trace_analysis import counters, reader
from training_profiler.trace_analysis.trace import analyse, analyse_ranks

SM = "SM Active (%)"
FIGURES = ("name", "device", "samples", "least", "mean", "most", "busy_mean", "idle_mean")


def sampled(values, begin_us=0):
    """Return a trace whose device is busy for the first 3 of every 5 ms, with a sample of SM every ms."""
    trace = Trace()
    for at in range(0, len(values), 5):
        trace.kernel("gemm", begin_us + 1000 * at, 3000)
    for at, value in enumerate(values):
        trace.counter(SM, begin_us + 1000 * at, value)
    return trace


def figures(trace, folder):
    return [[getattr(each, name) for name in FIGURES] for each in trace.analysed(folder).counters]


@pytest.mark.parametrize("begin_us", [0, 1_790_000_000_000_000])
def test_counters_have_their_means_in_work_and_in_gaps(begin_us, tmp_path):
    trace = sampled([40, 50, 60, 1, 3] * 3 + [0], begin_us)
    trace.events.reverse()  # in no order
    assert figures(trace, tmp_path) == [[SM, 0, 16, 0, pytest.approx(30.8), 60, 50, pytest.approx(2)]]


@QUICK
@given(
    st.lists(st.tuples(st.integers(0, 300), st.sampled_from([0.0, 1.5, 7.0, None])), min_size=2, max_size=12),
    st.lists(st.tuples(st.integers(0, 300), st.integers(1, 60)), min_size=1, max_size=5),
)
def test_means_are_as_counted_us_by_us(tmp_path, samples, works):
    trace = Trace()
    for at, length in works:
        trace.kernel("k", at, length)
    for at, value in samples:
        trace.counter("c", at, value)
    analysed = trace.analysed(tmp_path)
    held, busy = [], []
    ordered = sorted(samples, key=lambda sample: sample[0])
    for (at, value), (until, _) in pairwise(ordered):
        worked = sum(any(begin <= us < begin + length for begin, length in works) for us in range(at, until))
        held += [value] * (until - at) if value is not None else []
        busy += [value] * (until - at) if value is not None and worked > 0.9 * (until - at) else []
    known = [value for _, value in samples if value is not None]
    if not known:
        assert analysed.counters == ()
        return
    (found,) = analysed.counters
    assert found.samples == len(known)
    assert found.mean == pytest.approx(sum(held) / len(held) if held else sum(known) / len(known))
    assert found.busy_mean == (pytest.approx(sum(busy) / len(busy)) if busy else None)


def test_devices_and_series_stay_apart(tmp_path):
    trace = Trace().kernel("k", 0, 10, device=0).kernel("k", 10, 10, device=1)
    for at, value in ((0, 1), (10, 2), (20, 3)):
        trace.counter("Power (W)", at, value).counter("Power (W)", at, 10 * value, pid="GPU 1 Counters")
        trace.counter("HBM", at, {"read": value, "write": 2 * value}, pid=1)  # as MTIA's
        trace.counter("queue", at, value, pid=None)
    found = {(each.name, each.device): each.busy_mean for each in trace.analysed(tmp_path).counters}
    assert found == {
        ("Power (W)", 0): 1, ("Power (W)", 1): 20, ("HBM read", 1): 2, ("HBM write", 1): 4, ("queue", None): None,
    }  # fmt: skip


def test_what_is_not_a_number_or_has_no_time_is_left_out(tmp_path):
    trace = sampled([40, float("nan"), 60, float("-inf"), 5, 1])
    for value in ("5 W", None, True, [1], 10**400, "1e40"):
        trace.counter("odd", 1, value)
    trace.counter("text", 5, "7.5").counter("text", 5, 8)
    trace.events += [{"ph": "C", "name": "none", "ts": 1}, {"ph": "C", "name": "timeless", "args": {"": 1}}]
    analysed = trace.analysed(tmp_path)
    assert [(each.name, each.samples, each.mean) for each in analysed.counters] == [(SM, 4, 35), ("text", 2, 7.75)]
    assert analysed.notes == ("9 samples of counters, not read: no number, or too many",)


def test_numbers_that_kineto_writes_as_nan_are_left_out(tmp_path):
    path = sampled([40, 50, 0]).write(tmp_path)
    path.write_text(path.read_text().replace('"": 50', '"": -nan'))
    assert [each.samples for each in analyse(path).counters] == [2]


def test_a_trace_of_many_pieces_has_all_samples_of_few_counters(tmp_path, monkeypatch):
    monkeypatch.setattr(reader, "_CHUNK", 4096)
    monkeypatch.setattr(counters, "MOST_SERIES", 3)
    trace = sampled([i % 7 for i in range(2000)])
    for i in range(50):
        trace.counter(f"counter {i}", i, i)
    analysed = trace.analysed(tmp_path)
    assert [each.samples for each in analysed.counters] == [2000, 1, 1]
    assert analysed.notes == ("48 samples of counters, not read: no number, or too many",)


def test_each_rank_of_a_joined_trace_has_its_counters(tmp_path):
    trace = Trace()
    for rank in (0, 1):
        trace.op("a", 0, 5, pid=f"{rank}_7").event("kernel", "k", 0, 5, pid=f"{rank}_0", device=0, stream=7)
        for at in (0, 5):
            trace.counter(SM, at, 10 * rank, pid=f"{rank}_GPU 0 Counters")
    found = analyse_ranks(trace.write(tmp_path))
    assert [[(each.device, each.busy_mean) for each in of_rank.counters] for of_rank in found] == [[(0, 0)], [(0, 10)]]


def test_counters_are_in_every_form_and_an_annotated_copy_has_no_more(tmp_path, capsys):
    path = sampled([40, 50, 60, 1, 3, 0]).write(tmp_path)
    assert main(["trace", str(path)]) == 0
    text = capsys.readouterr().out
    assert max(map(len, text.splitlines())) <= 80
    assert [line.split() for line in text.splitlines() if line.startswith(SM)] == [
        ["SM", "Active", "(%)", "0", "6", "0", "30.8", "60", "50", "2"]
    ]
    page, copy = tmp_path / "a.html", tmp_path / "copy.json"
    assert main(["trace", str(path), "--html", str(page), "--csv", str(tmp_path), "--annotate", str(copy)]) == 0
    (row,) = csv.DictReader(io.StringIO((tmp_path / "counters.csv").read_text()))
    assert (row["counter"], float(row["busy"]), float(row["gaps"])) == (SM, 50, 2)
    data = json.loads(page.read_text().split('<script type="application/json" id="data">')[1].split("</script>")[0])
    busy, active = data["machine"]
    assert (busy["title"], active["title"], active["unit"], active["names"]) == (
        "Device busy (%)",
        SM,
        "%",
        ["device 0"],
    )
    assert active["values"][0][0] == 40
    capsys.readouterr()
    found = []
    for file in (path, copy):
        assert main(["trace", str(file), "--json"]) == 0
        found.append(json.loads(capsys.readouterr().out)["counters"])
    assert found[0] == found[1]
    assert (found[0][0]["busy"], found[0][0]["gaps"]) == (50, 2)
