"""Recordings that begin or end while the device is at work: nothing of that is said to be idle time or a delay."""

from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.cut_trace import cut
from tests.support.simulated_training import KERNEL, Loop, simulated
from tests.support.traces import Trace
from training_profiler.trace_analysis.critical_path import TimeChange, critical_path, outcome
from training_profiler.trace_analysis.path_graph import Graph
from training_profiler.trace_analysis.report.critical_path import render_critical_path
from training_profiler.trace_analysis.report.figures import trace_data
from training_profiler.trace_analysis.report.views import render_view
from training_profiler.trace_analysis.rules.recommendations import THRESHOLDS, recommendations
from training_profiler.trace_analysis.trace import analyse

QUICK = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=40, deadline=None)
OF_IDLE_TIME = {"gpu-idle", "launch-bound", "host-stall", "synchronizing-reads", "blocking-copies"}
LAGGING = Loop(steps=10, kernels=10, kernel_us=300, host_us=200)  # each step puts the device 1 ms further behind


def codes(found):
    return {finding.code for finding in recommendations(found)}


def analysed(trace, tmp_path):
    return analyse(trace.write(tmp_path))


def test_a_device_that_does_earlier_work_without_records_is_not_idle(tmp_path):
    found = analysed(cut(simulated(LAGGING)[0], 10_000, has_earlier_work=False), tmp_path)
    expected = (
        "for 5.0 ms the host or work that was launched waits although the device shows no work: "
        "what it did then is not in the trace"
    )
    assert [doubt.message for doubt in found.doubts] == [expected]
    assert not OF_IDLE_TIME & codes(found)
    assert found.graph == expected


def test_a_device_that_does_earlier_work_with_records_is_busy(tmp_path):
    found = analysed(cut(simulated(LAGGING)[0], 10_000), tmp_path)
    assert not found.doubts
    assert found.utilization_in_steps == 1.0


def test_a_host_that_first_waits_for_earlier_work_shows_that_there_is_some(tmp_path):
    trace = Trace().call("cudaStreamSynchronize", 10, 6000).op("aten::mm", 6020, 20)
    trace.kernel("gemm", 6040, 3000, launched=(6030, 5)).step(0, 0, 6100).step(1, 6100, 2940)
    found = analysed(trace, tmp_path)
    assert [doubt.code for doubt in found.doubts] == ["work-not-recorded"]
    assert not OF_IDLE_TIME & codes(found)


def test_a_host_that_first_reads_earlier_work_shows_that_there_is_some(tmp_path):
    trace = Trace().op("aten::item", 0, 6005).copy("DtoH (Device -> Pageable)", 5995, 3, launched=(10, 5990))
    trace.op("aten::mm", 6020, 20).kernel("gemm", 6040, 3000, launched=(6030, 5)).step(0, 0, 9000)
    assert [doubt.code for doubt in analysed(trace, tmp_path).doubts] == ["work-not-recorded"]


@pytest.mark.parametrize("launched_before", [False, True])
def test_a_device_that_does_earlier_work_for_a_short_time_is_not_idle_either(launched_before, tmp_path):
    """Under a tenth of the steps does not make the trace doubtful, and is still not idle."""
    trace, free = Trace(), 2500
    for number in range(3):
        trace.step(number, 10_000 * number, 10_000)
        for i in range(10):
            at = 10_000 * number + 100 * i
            trace.op("aten::mm", at, 60).kernel("gemm", free, 1000, launched=(at + 30, 20))
            free += 1000
    if launched_before:  # its call is not recorded
        trace.events = [event for event in trace.events if event["name"] != "cudaLaunchKernel" or event["ts"] != 30]
    found = analysed(trace, tmp_path)
    assert not found.doubts
    until_us = 2500 if launched_before else 2450
    last = found.edges[-1].gap
    assert (last.cause, last.length_ns) == ("work not recorded", until_us * 1000)
    assert (found.unseen_ns, trace_data(found)["not_recorded_ms"]) == (until_us * 1000, until_us / 1000)
    assert found.utilization > 0.998
    without = f"without {until_us / 1000:.3f} ms of work that was not recorded"
    assert without in " ".join(render_view("overview", found, "host_self").split())
    assert "gpu-idle" not in {finding.code for finding in recommendations(found, THRESHOLDS | {"gpu-idle": 0.95})}


@pytest.mark.parametrize("loop", [LAGGING, Loop(loader_us=9000), Loop(host_us=300, read=True)])
def test_a_recording_from_the_begin_is_whole(loop, tmp_path):
    assert not analysed(simulated(loop)[0], tmp_path).doubts


@pytest.mark.parametrize(("is_marked", "has_earlier_work"), [(True, True), (False, True), (False, False)])
def test_the_path_begins_after_earlier_work(is_marked, has_earlier_work, tmp_path):
    trace = simulated(replace(LAGGING, is_marked=is_marked))[0]
    graph = analysed(cut(trace, 10_000, has_earlier_work=has_earlier_work), tmp_path).graph
    assert isinstance(graph, Graph), graph
    path = critical_path(graph)
    assert (path.wall_ns, path.kinds_ns) == (15_000_000, {"kernel": 15_000_000})
    assert (path.steps, path.step_ns) == (5 * is_marked, None)
    text = " ".join(render_critical_path(graph).split())
    assert "launched, from when the device began with it, after 5.197 ms: 15.000 ms on the path" in text
    assert "if it takes change" in text
    half = TimeChange("", KERNEL, device_saved=0.5, device_kind="kernel")
    assert outcome(graph, half).wall_ns == 7_500_000


@QUICK
@given(st.integers(0, 18_000), st.booleans(), st.booleans())
def test_no_cut_of_a_busy_device_makes_it_idle(tmp_path, begin_us, is_marked, has_earlier_work):
    loop = Loop(steps=10, kernels=10, kernel_us=300, host_us=200, is_marked=is_marked)
    found = analysed(cut(simulated(loop)[0], begin_us, has_earlier_work=has_earlier_work), tmp_path)
    assert not OF_IDLE_TIME & codes(found)
    if isinstance(found.graph, Graph):
        path = critical_path(found.graph)
        assert path.kinds_ns.get("launch delay", 0) <= 1_000_000  # a wait that long may be a slow start


LATE = "waiting for what is not recorded"


@pytest.mark.parametrize(("wait_us", "kind"), [(1500, LATE), (900, "launch delay")])
def test_a_short_wait_for_work_without_records_is_named_on_the_path(wait_us, kind, tmp_path):
    trace = Trace().op("aten::mm", 0, 30_000).kernel("gemm", 20 + wait_us, 40_000, launched=(5, 10))
    kinds = critical_path(analysed(trace, tmp_path).graph).kinds_ns
    assert kinds[kind] == (15 + wait_us) * 1000


def lost_at_the_end(busy_us):
    """Return 200 launches whose last three kernels are not recorded, and a last step that waits for them."""
    lost = frozenset({197, 198, 199})
    trace = simulated(Loop(steps=10, kernels=20, kernel_us=100, host_us=120, loses=lost, is_marked=False))[0]
    return trace.step(0, 0, 24_000).step(1, 24_000, busy_us).call("cudaDeviceSynchronize", 24_010, busy_us - 20)


def test_the_last_kernels_that_are_lost_may_have_been_long(tmp_path):
    found = analysed(lost_at_the_end(8000), tmp_path)
    expected = (
        "3 of 200 kernel launches have no kernel, all of them the last ones: the buffer was full, or the recording"
    )
    assert [doubt.message for doubt in found.doubts] == [f"{expected} ended before the device"]
    assert not OF_IDLE_TIME & codes(found)


def test_after_the_last_kernels_that_are_lost_idle_time_has_no_known_cause(tmp_path):
    found = analysed(lost_at_the_end(1500), tmp_path)
    assert not found.doubts
    assert [edge.gap.cause for edge in found.edges] == ["launch-bound", "unknown"]


@QUICK
@given(st.integers(1000, 29_000), st.booleans())
def test_a_recording_that_ends_early_does_not_make_the_device_idle(tmp_path, end_us, is_marked):
    loop = Loop(steps=10, kernels=10, kernel_us=300, host_us=200, is_marked=is_marked)
    trace = cut(simulated(loop)[0], 0, end_us)
    assert not OF_IDLE_TIME & codes(analysed(trace, tmp_path))


def test_a_recording_with_later_work_did_not_end_early(tmp_path):
    trace = cut(simulated(LAGGING)[0], 0, 20_000)
    assert "the recording ended before the device" in analysed(trace, tmp_path).doubts[0].message
    trace.copy("DtoH (Device -> Pageable)", 40_000, 5, correlation=1_000)
    assert analysed(trace, tmp_path).doubts[0].message == "34 of 100 kernel launches have no kernel"
