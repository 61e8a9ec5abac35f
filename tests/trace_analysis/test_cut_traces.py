"""Recordings that begin or end while the device is at work: nothing of that is said to be idle time or a delay."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.cut_trace import cut
from tests.support.simulated_training import KERNEL, Loop, simulated
from tests.support.traces import QUICK
from training_profiler.trace_analysis.critical_path import TimeChange, critical_path, outcome
from training_profiler.trace_analysis.path_graph import Graph
from training_profiler.trace_analysis.report_views import render_path
from training_profiler.trace_analysis.rules_findings import recommendations
from training_profiler.trace_analysis.trace import analyse

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
    assert list(found.doubts.values()) == [expected]
    assert not OF_IDLE_TIME & codes(found)
    assert found.graph == expected


@pytest.mark.parametrize(("is_marked", "has_earlier_work"), [(True, True), (False, True), (False, False)])
def test_the_path_begins_after_earlier_work(is_marked, has_earlier_work, tmp_path):
    trace = simulated(replace(LAGGING, is_marked=is_marked))[0]
    graph = analysed(cut(trace, 10_000, has_earlier_work=has_earlier_work), tmp_path).graph
    assert isinstance(graph, Graph), graph
    path = critical_path(graph)
    assert (path.wall_ns, path.kinds_ns) == (15_000_000, {"kernel": 15_000_000})
    assert (path.steps, path.step_ns) == (5 * is_marked, None)
    text = " ".join(render_path(graph).split())
    assert "launched, from when the device began with it, after 5.197 ms: 15.000 ms on the path" in text
    assert "if it takes change" in text
    half = TimeChange("", KERNEL, device_saved=0.5, device_kind="kernel")
    assert outcome(graph, half) == 7_500_000


@QUICK
@given(st.integers(0, 18_000), st.booleans(), st.booleans())
def test_no_cut_of_a_busy_device_makes_it_idle(tmp_path, begin_us, is_marked, has_earlier_work):
    loop = Loop(steps=10, kernels=10, kernel_us=300, host_us=200, is_marked=is_marked)
    found = analysed(cut(simulated(loop)[0], begin_us, has_earlier_work=has_earlier_work), tmp_path)
    assert not OF_IDLE_TIME & codes(found)
    if isinstance(found.graph, Graph):
        path = critical_path(found.graph)
        assert path.kinds_ns.get("launch delay", 0) <= 1_000_000  # a wait that long may be a slow start


@QUICK
@given(st.integers(1000, 29_000), st.booleans())
def test_a_recording_that_ends_early_does_not_make_the_device_idle(tmp_path, end_us, is_marked):
    loop = Loop(steps=10, kernels=10, kernel_us=300, host_us=200, is_marked=is_marked)
    trace = cut(simulated(loop)[0], 0, end_us)
    assert not OF_IDLE_TIME & codes(analysed(trace, tmp_path))


def test_a_recording_with_later_work_did_not_end_early(tmp_path):
    trace = cut(simulated(LAGGING)[0], 0, 20_000)
    assert "the recording ended before the device" in next(iter(analysed(trace, tmp_path).doubts.values()))
    trace.copy("DtoH (Device -> Pageable)", 40_000, 5, correlation=1_000)
    assert next(iter(analysed(trace, tmp_path).doubts.values())) == "34 of 100 kernel launches have no kernel"
