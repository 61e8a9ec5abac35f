"""Real traces against exact figures of an independent analysis. The traces are not part of the project."""

import gzip
import json
from collections import Counter
from functools import cache
from pathlib import Path

import pytest

from training_profiler.trace_analysis.communication import over_ranks
from training_profiler.trace_analysis.compare import compare
from training_profiler.trace_analysis.critical_path import critical_path
from training_profiler.trace_analysis.report_figures import trace_data
from training_profiler.trace_analysis.trace import analyse

TRACES = Path(__file__).parents[3] / "shared" / "traces"
pytestmark = pytest.mark.skipif(not TRACES.is_dir(), reason=f"no real traces here: {TRACES} is absent")
EXPECTED = json.loads((TRACES / "expected.json").read_text()) if TRACES.is_dir() else {}
# Where we differ, and why. MIOpen's SubTensorOp... kernels are elementwise: their name holds "TensorOp" by chance; its
# igemm_*_gtcx3 and xdlops kernels are those that run on the matrix cores.
OTHER_RULE = {("mi300x_resnet_ddp.pt.trace.json.gz", "tensorcore_named_pct"): 6.365682401381282}
UNKNOWN_THERE = {"gpu_events_without_launch"}  # null in all of them
ROUNDED_THERE = {"largest_gaps_ms", "steps", "syncs"}  # to the microsecond
KEYS = sorted({key for expected in EXPECTED.values() for key in expected} - UNKNOWN_THERE)


@cache
def analysed(name):
    return analyse(TRACES / name)


@cache
def data(name):
    return trace_data(analysed(name))


def same(expected, found, abs_ms=1e-9):
    """Compare figures: floats of ms and per cent to below a nanosecond, all else exactly."""
    if isinstance(expected, dict):
        return expected.keys() == found.keys() and all(
            same(value, found[key], abs_ms) for key, value in expected.items()
        )
    if isinstance(expected, list):
        return len(expected) == len(found) and all(map(same, expected, found, [abs_ms] * len(found)))
    return found == (pytest.approx(expected, rel=1e-12, abs=abs_ms) if isinstance(expected, float) else expected)


@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize("name", EXPECTED)
def test_figure_equals_independent_analysis(name, key):
    expected = OTHER_RULE.get((name, key), EXPECTED[name].get(key))
    found = data(name)[key]
    if key == "top_kernels":
        found = [{part: entry[part] for part in ("name", "calls", "ms")} for entry in found]
    assert key not in EXPECTED[name] or same(expected, found, 0.0005001 if key in ROUNDED_THERE else 1e-9)


@pytest.mark.parametrize("name", EXPECTED)
def test_figures_of_each_trace_add_up_and_little_is_unknown(name):
    found, figures = analysed(name), data(name)
    for steps in (found.steps, *(device.steps for device in found.devices)):
        for step in steps:
            parts = (step.compute_ns, step.exposed_communication_ns, step.exposed_copies_ns, step.idle_ns)
            assert sum(parts) == step.end_ns - step.begin_ns
            assert min(parts) >= 0
    assert found.device.busy.total_ns + sum(found.gap_lengths_ns) == found.span_ns
    causes = figures["gap_causes_ms"]
    assert causes.get("unknown", 0) < 0.05 * sum(causes.values())
    assert figures["unclassified_pct"] < 2
    assert not [rate for rate in found.roofline.rates if rate.is_above_roof]
    assert found.roofline.rated_ns <= found.roofline.kernel_ns
    assert found.doubts == {}
    json.dumps(figures, allow_nan=False)


def test_more_workers_remove_the_wait_for_data_and_raise_utilization():
    found = compare(*(analysed(f"v100_resnet50_workers{count}.pt.trace.json.gz") for count in (0, 4)))
    rows = {difference.name: difference for difference in found.differences}
    before, after = found.utilization
    assert (round(before, 3), round(after, 3)) == (0.560, 0.724)
    assert rows["DataLoader (host)"].before_ns == pytest.approx(69.3e6, rel=1e-3)
    assert rows["DataLoader (host)"].after_ns == pytest.approx(1.42e6, rel=1e-3)
    assert {name: row.is_noise for name, row in rows.items()} == {
        "step": False,
        "compute": True,
        "exposed communication": True,
        "exposed copies": False,
        "idle": False,
        "DataLoader (host)": False,
    }


def test_work_per_step_equals_sums_over_the_file():
    path = TRACES / "v100_resnet50_workers4.pt.trace.json.gz"
    found = analyse(path)
    events = [event for event in json.loads(gzip.decompress(path.read_bytes()))["traceEvents"] if event["ph"] == "X"]
    steps = [(e["ts"], e["ts"] + e["dur"]) for e in events if e["name"].startswith("ProfilerStep#")]
    launched = {e["args"]["correlation"]: e["ts"] for e in events if e["cat"] == "Runtime"}
    sums, shares = Counter(), compare(found, found).work["kernels"]
    for event in events:
        at = launched.get(event["args"].get("correlation")) if event["cat"] == "Kernel" else None
        if at is not None and any(begin <= at < end for begin, end in steps):
            sums[event["name"]] += event["dur"] * 1000
    assert {row.name: round(row.before_ns * len(steps)) for row in shares} == sums
    assert all(row.change_ns == 0 for row in shares)


def test_rates_equal_sums_over_the_file():
    name = "h100_qwen_inference.pt.trace.json.gz"
    events = json.loads(gzip.decompress((TRACES / name).read_bytes()))["traceEvents"]
    shapes = [[8944, 1024], [1024, 2816]]
    of = {e["args"]["External id"] for e in events if e["name"] == "aten::mm" and e["args"]["Input Dims"] == shapes}
    works = [e for e in events if e.get("cat") in ("kernel", "gpu_memset") and e["args"].get("External id") in of]
    rate = analysed(name).roofline.rates[0]
    assert (rate.name, rate.calls, rate.dtype) == ("aten::mm", len(of), "bfloat16")
    assert rate.device_ns == round(1000 * sum(event["dur"] for event in works))
    assert rate.flops == 2 * 8944 * 1024 * 2816 * len(of)
    assert (rate.bound, round(rate.share_of_roof, 3)) == ("compute", 0.617)


def test_eight_ranks_wait_for_the_last_rank():
    ranks = {trace.rank: trace for trace in (analysed(name) for name in EXPECTED if "8ranks" in name)}
    found = {
        collective.kind: collective
        for collective in over_ranks({rank: trace.collective_runs for rank, trace in ranks.items()})
    }
    assert sorted(ranks) == list(range(8))
    assert found["send_recv"].count == 5
    assert found["send_recv"].latest_rank == 7
    assert found["send_recv"].waiting_ns > 50 * found["send_recv"].transfer_ns


def test_trace_with_launches_alone_is_incomplete():
    found = data("launches_without_kernels.pt.trace.json.gz")
    assert found["doubts"][0]["message"].startswith("77 of 77 kernel launches have no kernel")
    assert "gpu-idle" not in [finding["code"] for finding in found["recommendations"]]


BEHIND = {"mi300x_resnet_ddp.pt.trace.json.gz", "h100_qwen_inference.pt.trace.json.gz"}


@pytest.mark.parametrize("name", EXPECTED)
def test_critical_path_adds_up_and_begins_after_earlier_work(name):
    path = critical_path(analyse(TRACES / name).graph)
    assert sum(link.ns for link in path.links) == path.wall_ns > 0
    assert (path.earlier_ns > 0) == (name in BEHIND)
    assert (path.step_ns is None) == (name in BEHIND)
