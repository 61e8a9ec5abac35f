"""The critical path and its predictions, against simulations in which the change was really made."""

from collections import Counter
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.simulated_program import BACKWARD, FORWARD, KERNEL, Program, simulated_program
from tests.support.traces import AUTOGRAD, QUICK, Trace
from training_profiler.trace_analysis.critical_path import TimeChange, changes_for, critical_path, outcome, spans_of
from training_profiler.trace_analysis.event_table import read_columns
from training_profiler.trace_analysis.path_graph import Graph
from training_profiler.trace_analysis.trace import analyse

US = 1000
TOLERANCE = 0.01  # of the time that a change is predicted to give
HOST_BOUND = Program(kernel_us=4, host_us=40)
DEVICE_BOUND = Program(kernel_us=200, host_us=20)
SYNC = Program(kernel_us=120, host_us=60, syncs=True)
DATA_GAP = Program(kernel_us=60, host_us=20, loader_us=3000)
STREAMS = Program(kernel_us=40, host_us=40, python_us=100, has_collective=True, collective_us=600)
HANDED_OVER = Program(kernel_us=4, host_us=20, backward_us=60)
PROGRAMS = st.builds(
    Program,
    steps=st.integers(1, 3),
    kernels=st.integers(2, 6),
    kernel_us=st.sampled_from([4, 40, 200]),
    host_us=st.sampled_from([8, 40, 160]),
    backward_us=st.sampled_from([0, 40, 120]),
    loader_us=st.sampled_from([0, 800]),
    syncs=st.booleans(),
    has_collective=st.booleans(),
    python_us=st.just(300),  # a kernel longer than its step would be doubted
    collective_us=st.sampled_from([10, 250]),
)
# For each change what it makes of a program.
CHANGES = {
    TimeChange("operator", FORWARD, host_saved=0.5, host_kind="operator"): lambda program: {
        "host_us": program.host_us / 2
    },
    TimeChange("backward", BACKWARD, host_saved=0.5, host_kind="operator"): lambda program: {
        "backward_us": program.backward_us / 2
    },
    TimeChange("kernel", KERNEL, device_saved=0.5, device_kind="kernel"): lambda program: {
        "kernel_us": program.kernel_us / 2
    },
    TimeChange("data", host_saved=1.0, host_kind="data loading"): lambda program: {"loader_us": 0},
    TimeChange("overlap", device_saved=1.0, device_kind="communication"): lambda program: {"collective_us": 0},
}
NOTHING = TimeChange("nothing")


def graph_of(trace: Trace, tmp_path) -> Graph:
    graph = analyse(trace.write(tmp_path)).graph
    assert isinstance(graph, Graph), graph
    return graph


def why_not(trace: Trace, tmp_path) -> str:
    why = analyse(trace.write(tmp_path)).graph
    assert isinstance(why, str)
    return why


def shares(program, tmp_path):
    path = critical_path(graph_of(simulated_program(program)[0], tmp_path))
    return {kind: ns / path.wall_ns for kind, ns in path.kinds_ns.items()}


@pytest.mark.parametrize(
    ("program", "kind", "least", "most"),
    [
        (HOST_BOUND, "operator", 0.8, 1),
        (DEVICE_BOUND, "kernel", 0.8, 1),
        (DATA_GAP, "data loading", 0.8, 1),
        (HANDED_OVER, "operator", 0.8, 1),
        (SYNC, "kernel", 0.6, 1),
        (SYNC, "synchronize", 0.001, 0.05),
        (STREAMS, "communication", 0.4, 1),
        (replace(STREAMS, collective_us=50), "communication", 0, 0),
    ],
)
def test_the_path_leads_through_what_the_program_is_bound_by(program, kind, least, most, tmp_path):
    assert least <= shares(program, tmp_path).get(kind, 0) <= most


def test_without_the_wait_the_host_runs_ahead(tmp_path):
    graph = graph_of(simulated_program(SYNC)[0], tmp_path)
    truth = simulated_program(replace(SYNC, syncs=False))[1]
    found = outcome(graph, TimeChange("no wait", without_waits=True))
    assert found == pytest.approx(truth * US, rel=TOLERANCE)
    assert found < 0.96 * outcome(graph, NOTHING)


@QUICK
@given(PROGRAMS, st.sampled_from(list(CHANGES)))
def test_predictions_hold_for_any_program(tmp_path, program, change):
    graph = graph_of(simulated_program(program)[0], tmp_path)
    truth = simulated_program(replace(program, **CHANGES[change](program)))[1]
    assert outcome(graph, change) == pytest.approx(truth * US, rel=TOLERANCE, abs=10 * US)


@QUICK
@given(PROGRAMS)
def test_links_add_up_and_no_change_changes_nothing(tmp_path, program):
    trace, end_us = simulated_program(program)
    graph = graph_of(trace, tmp_path)
    path = critical_path(graph)
    assert sum(link.ns for link in path.links) == path.wall_ns == end_us * US
    assert min(link.ns for link in path.links) > 0
    assert outcome(graph, NOTHING) == path.wall_ns


@QUICK
@given(PROGRAMS, st.floats(0, 1), st.floats(0, 1))
def test_what_is_faster_never_lengthens_a_step(tmp_path, program, one, other):
    graph = graph_of(simulated_program(program)[0], tmp_path)
    less, more = sorted((one, other))
    for kind, name in (("operator", FORWARD), ("operator", BACKWARD), ("data loading", ""), ("", "")):
        slower, faster = (
            outcome(graph, TimeChange("", name, host_saved=saved, host_kind=kind)) for saved in (less, more)
        )
        assert faster <= slower <= outcome(graph, NOTHING)
    slower, faster = (outcome(graph, TimeChange("", device_saved=saved)) for saved in (less, more))
    assert faster <= slower <= outcome(graph, NOTHING)


def test_changes_are_offered_for_what_the_path_consists_of(tmp_path):
    def offered(program):
        graph = graph_of(simulated_program(program)[0], tmp_path)
        return {change.name or change.what for change in changes_for(graph, critical_path(graph))}

    always = {"the host is twice as fast", "all kernels are twice as fast"}
    assert offered(HOST_BOUND) == always | {FORWARD}
    assert offered(DATA_GAP) == always | {FORWARD, KERNEL, "data loading takes no time"}
    assert offered(SYNC) == always | {FORWARD, KERNEL, "the host never waits for the device"}
    assert "communication is hidden completely" in offered(STREAMS)


def test_a_trace_that_lacks_what_is_needed_says_so(tmp_path):
    kernels = [event["args"] for event in simulated_program(SYNC)[0].events if event["cat"] == "kernel"]
    for changed, why in (
        ({args["correlation"]: {"correlation": 0} for args in kernels}, "the launch of 32 of 32 pieces of device work"),
        ({kernels[0]["correlation"]: {"device": 1}}, "it has work of several devices: record each rank in a file of"),
    ):
        trace = simulated_program(SYNC)[0]
        for event in trace.events:
            event["args"] |= changed.get(event["args"].get("correlation"), {})
        assert why_not(trace, tmp_path).startswith(why)


def test_updates_show_the_thread_of_the_loop_where_no_step_is_marked(tmp_path):
    trace = Trace()
    for i in range(5):
        trace.mark("Optimizer.step#SGD.step", 1000 * i + 800, 100).op("aten::add_", 1000 * i + 810, 20)
        for j in range(4):
            trace.op("autograd::engine::evaluate_function: MmBackward0", 1000 * i + 100 * j, 50, tid=AUTOGRAD)
    columns = read_columns(trace.write(tmp_path))
    assert columns.threads[columns.main_thread][1] != AUTOGRAD


@QUICK
@given(PROGRAMS)
def test_spans_of_the_path_follow_one_another_and_have_its_links(tmp_path, program):
    graph = graph_of(simulated_program(program)[0], tmp_path)
    path, spans = critical_path(graph), spans_of(graph)
    assert (spans[0].begin_ns, spans[-1].end_ns) == (path.begin_ns, path.begin_ns + path.wall_ns)
    assert all(one.end_ns == other.begin_ns for one, other in pairwise(spans))
    sums = Counter()
    for span in spans:
        sums[span.kind, span.name] += span.end_ns - span.begin_ns
    assert sums == {(link.kind, link.name): link.ns for link in path.links}
