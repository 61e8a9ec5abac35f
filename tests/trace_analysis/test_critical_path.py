"""The critical path and its predictions, against simulations in which the change was really made."""

from collections import Counter
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.simulated_program import BACKWARD, COLLECTIVE, FORWARD, KERNEL, Program, simulated_program
from tests.support.traces import AUTOGRAD, Trace
from training_profiler.trace_analysis.critical_path import (
    TimeChange,
    changes_for,
    critical_path,
    outcome,
    outcomes,
    spans_of,
)
from training_profiler.trace_analysis.load.table import read_columns
from training_profiler.trace_analysis.path_graph import Graph
from training_profiler.trace_analysis.report.critical_path import render_critical_path
from training_profiler.trace_analysis.timeline import main_thread
from training_profiler.trace_analysis.trace import analyse

QUICK = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=40, deadline=None)
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
    ("program", "kind"),
    [(HOST_BOUND, "operator"), (DEVICE_BOUND, "kernel"), (DATA_GAP, "data loading"), (HANDED_OVER, "operator")],
)
def test_the_path_leads_through_what_the_program_is_bound_by(program, kind, tmp_path):
    assert shares(program, tmp_path)[kind] > 0.8


def test_around_a_wait_the_path_leads_through_the_device(tmp_path):
    found = shares(SYNC, tmp_path)
    assert found["kernel"] > 0.6
    assert 0 < found["synchronize"] < 0.05


def test_a_long_collective_is_on_the_path_and_a_short_one_is_not(tmp_path):
    assert shares(STREAMS, tmp_path)["communication"] > 0.4
    assert "communication" not in shares(replace(STREAMS, collective_us=50), tmp_path)


def test_links_name_kernels_operators_and_threads(tmp_path):
    names = {link.name for link in critical_path(graph_of(simulated_program(HANDED_OVER)[0], tmp_path)).links}
    assert {FORWARD, BACKWARD, "hand-over to another thread"} <= names
    path = critical_path(graph_of(simulated_program(STREAMS)[0], tmp_path))
    assert {link.name for link in path.links} == {KERNEL, COLLECTIVE, FORWARD, ""}


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.what)
@pytest.mark.parametrize("program", [HOST_BOUND, DEVICE_BOUND, SYNC, DATA_GAP, STREAMS, HANDED_OVER])
def test_prediction_equals_the_simulation_with_the_change(program, change, tmp_path):
    graph = graph_of(simulated_program(program)[0], tmp_path)
    truth = simulated_program(replace(program, **CHANGES[change](program)))[1]
    assert outcome(graph, change).wall_ns == pytest.approx(truth * US, rel=TOLERANCE)


def test_without_the_wait_the_host_runs_ahead(tmp_path):
    graph = graph_of(simulated_program(SYNC)[0], tmp_path)
    truth = simulated_program(replace(SYNC, syncs=False))[1]
    found = outcome(graph, TimeChange("no wait", without_waits=True)).wall_ns
    assert found == pytest.approx(truth * US, rel=TOLERANCE)
    assert found < 0.96 * outcome(graph, NOTHING).wall_ns


@QUICK
@given(PROGRAMS, st.sampled_from(list(CHANGES)))
def test_predictions_hold_for_any_program(tmp_path, program, change):
    graph = graph_of(simulated_program(program)[0], tmp_path)
    truth = simulated_program(replace(program, **CHANGES[change](program)))[1]
    assert outcome(graph, change).wall_ns == pytest.approx(truth * US, rel=TOLERANCE, abs=10 * US)


@QUICK
@given(PROGRAMS)
def test_links_add_up_and_no_change_changes_nothing(tmp_path, program):
    trace, end_us = simulated_program(program)
    graph = graph_of(trace, tmp_path)
    path = critical_path(graph)
    assert sum(link.ns for link in path.links) == path.wall_ns == end_us * US
    assert min(link.ns for link in path.links) > 0
    assert outcome(graph, NOTHING).wall_ns == path.wall_ns


@QUICK
@given(PROGRAMS, st.floats(0, 1), st.floats(0, 1))
def test_what_is_faster_never_lengthens_a_step(tmp_path, program, one, other):
    graph = graph_of(simulated_program(program)[0], tmp_path)
    less, more = sorted((one, other))
    for kind, name in (("operator", FORWARD), ("operator", BACKWARD), ("data loading", ""), ("", "")):
        slower, faster = (
            outcome(graph, TimeChange("", name, host_saved=saved, host_kind=kind)).wall_ns for saved in (less, more)
        )
        assert faster <= slower <= outcome(graph, NOTHING).wall_ns
    slower, faster = (outcome(graph, TimeChange("", device_saved=saved)).wall_ns for saved in (less, more))
    assert faster <= slower <= outcome(graph, NOTHING).wall_ns


@QUICK
@given(PROGRAMS, st.randoms(use_true_random=False))
def test_order_of_events_in_the_file_does_not_matter(tmp_path, program, order):
    trace, _ = simulated_program(program)
    before = critical_path(graph_of(trace, tmp_path))
    order.shuffle(trace.events)
    assert critical_path(graph_of(trace, tmp_path)) == before


def test_changes_are_offered_for_what_the_path_consists_of(tmp_path):
    def offered(program):
        graph = graph_of(simulated_program(program)[0], tmp_path)
        return {change.name or change.what for change in changes_for(graph, critical_path(graph))}

    always = {"the host is twice as fast", "all kernels are twice as fast"}
    assert offered(HOST_BOUND) == always | {FORWARD}
    assert offered(DATA_GAP) == always | {FORWARD, KERNEL, "data loading takes no time"}
    assert offered(SYNC) == always | {FORWARD, KERNEL, "the host never waits for the device"}
    assert "communication is hidden completely" in offered(STREAMS)


def test_a_launch_into_a_full_queue_waits_for_the_device(tmp_path):
    """1,200 launches of 1 us, kernels of 10 us: from the thousandth on, each launch waits for one to end."""
    trace, now, free = Trace(), 0, 3
    ends = []
    for number in range(1200):
        room = ends[number - 1001] if number > 1000 else 0
        end = max(now + 1, room + 0.5)
        at = max(now + 0.5, free)
        trace.kernel(KERNEL, at, 10, launched=(now, end - now))
        free = at + 10
        ends.append(free)
        now = end + 0.5
    trace.step(0, 0, now)
    path = critical_path(graph_of(trace, tmp_path))
    assert path.kinds_ns["kernel"] > 0.95 * path.wall_ns


def test_a_trace_of_the_host_alone_has_a_path(tmp_path):
    trace = Trace().op("aten::mm", 0, 60).op(BACKWARD, 63, 30, tid=AUTOGRAD).op("aten::add", 95, 5).step(0, 0, 100)
    kinds = critical_path(graph_of(trace, tmp_path)).kinds_ns
    assert kinds == {"operator": 95_000, "outside of operators": 5000}


def test_after_much_work_from_before_the_steps_the_path_begins_with_theirs(tmp_path):
    def with_earlier(us):
        trace = Trace().op("aten::mm", 0, 5000).call("cudaLaunchKernel", 4000, 5, correlation=20).step(0, 0, 6000)
        return trace.kernel(KERNEL, 5000, 5000, correlation=20).kernel(KERNEL, 50, us, correlation=7)

    path = critical_path(graph_of(with_earlier(400), tmp_path))
    assert (path.wall_ns, path.kinds_ns["kernel"], path.kinds_ns["operator"]) == (10_000_000, 5_000_000, 4_000_000)
    path = critical_path(graph_of(with_earlier(4050), tmp_path))
    assert (path.earlier_ns, path.kinds_ns) == (5_000_000, {"kernel": 5_000_000})
    expected = "the device did nothing but work that was launched before"
    trace = Trace().op("aten::mm", 0, 5000).kernel(KERNEL, 500, 5000, launched=(10, 5)).step(0, 1000, 4000)
    assert why_not(trace, tmp_path) == expected


def lost(trace):
    return next(event for event in trace.events if event["cat"] == "kernel")


def test_a_trace_that_lacks_what_is_needed_says_so(tmp_path):
    trace, _ = simulated_program(SYNC)
    for event in trace.events:
        event["args"].pop("correlation", None)
    assert why_not(trace, tmp_path) == "the launch of 32 of 32 pieces of device work is unknown"
    trace, _ = simulated_program(SYNC)
    trace.events.remove(lost(trace))
    assert why_not(trace, tmp_path) == "1 of 32 kernel launches have no kernel"
    trace, _ = simulated_program(SYNC)
    lost(trace)["args"]["device"] = 1
    assert why_not(trace, tmp_path) == "it has work of several devices: record each rank in a file of its own"
    assert why_not(Trace().kernel(KERNEL, 0, 5), tmp_path) == "it has no events of the host"
    apart = Trace().op(FORWARD, 0, 9).step(0, 0, 10).op(FORWARD, 90, 9).step(1, 90, 10)
    assert why_not(apart, tmp_path) == "its steps do not follow one another"


def back_to_back(overlap_us):
    """Ten kernels in a row on one stream, launched long before; each begins a little before the last one ends."""
    trace = Trace().step(1, 0, 10_300)
    for i in range(10):
        trace.kernel("gemm", 200 + 1000 * i, 1000 + overlap_us, launched=(10 + 5 * i, 4))
    return trace.call("cudaDeviceSynchronize", 100, 10_150)


@pytest.mark.parametrize("overlap_us", [0, 0.2, 15])
def test_kernels_of_a_stream_that_overlap_slightly_follow_each_other(overlap_us, tmp_path):
    kinds = critical_path(graph_of(back_to_back(overlap_us), tmp_path)).kinds_ns
    assert kinds["kernel"] >= 9_900 * US


@pytest.mark.parametrize("late_us", [-5, 30])
def test_a_blocking_copy_is_awaited_although_it_ends_a_moment_after_its_call(late_us, tmp_path):
    trace = Trace().step(1, 0, 3000).op("aten::copy_", 5, 1000)
    trace.call("cudaMemcpyAsync", 10, 990, correlation=1)
    trace.event(
        "gpu_memcpy",
        "Memcpy HtoD (Pageable -> Device)",
        20,
        980 + late_us,
        tid=7,
        pid=0,
        device=0,
        stream=7,
        correlation=1,
    )
    trace.op("aten::mm", 2000, 50).kernel("gemm", 2100, 500, launched=(2010, 5))
    path = critical_path(graph_of(trace, tmp_path))
    assert path.kinds_ns.get("copy", 0) >= 900 * US, path.kinds_ns


def test_time_without_a_name_is_shown_among_the_longest(tmp_path):
    trace = Trace().step(1, 0, 5000).op("aten::mm", 4000, 50).kernel("gemm", 4100, 500, launched=(4010, 5))
    text = render_critical_path(graph_of(trace, tmp_path))
    assert "(no operator or annotation)" in text


def test_updates_show_the_thread_of_the_loop_where_no_step_is_marked(tmp_path):
    trace = Trace()
    for i in range(5):
        trace.mark("Optimizer.step#SGD.step", 1000 * i + 800, 100).op("aten::add_", 1000 * i + 810, 20)
        for j in range(4):
            trace.op("autograd::engine::evaluate_function: MmBackward0", 1000 * i + 100 * j, 50, tid=AUTOGRAD)
    columns = read_columns(trace.write(tmp_path))
    assert columns.threads[main_thread(columns)][1] != AUTOGRAD


def test_an_extension_that_waits_without_an_operator_is_not_called_python(tmp_path):
    """It reads a flag of the device again and again while a kernel communicates: the trace shows neither."""
    trace = Trace().step(1, 0, 5000).mark("dispatch(F)", 0, 4500)
    trace.kernel("void dpsk::ep::internode::notify_dispatch<8>()", 20, 4000, launched=(10, 5))
    path = critical_path(graph_of(trace.op("aten::empty", 4100, 300), tmp_path))
    longest = path.links[0]
    assert (longest.kind, longest.name) == ("outside of operators", "dispatch(F)")
    assert not any("python" in kind for kind in path.kinds_ns)


def test_an_operator_is_not_charged_with_the_allocations_within_it(tmp_path):
    trace = Trace().step(1, 0, 5000).op("aten::addmm", 0, 4000).call("cudaMalloc", 100, 3000)
    graph = graph_of(trace.kernel("gemm", 4010, 100, launched=(3900, 50)), tmp_path)
    path = critical_path(graph)
    assert (path.kinds_ns["allocation"], path.kinds_ns["operator"]) == (3_000_000, 1_000_000)
    found = {(each.change.what, each.change.name): each.wall_ns for each in outcomes(graph, path)}
    assert found["twice as fast", "aten::addmm"] == 4_500_000
    assert found["allocations take no time", ""] == 2_000_000


def contended(tail_us, **long):
    """Return a trace with a kernel that is launched at once and begins as a long one of another stream ends."""
    trace = Trace().step(1, 0, 4425).op("aten::mm", 0, 100)
    trace.kernel("long", 60, 4000 + tail_us, launched=(50, 5), **long)
    trace.kernel("late", 4060, 50, launched=(70, 5), stream=20)
    trace.kernel("gemm", 4110, 300, launched=(80, 5), stream=20)
    return trace.call("cudaStreamSynchronize", 200, 4225)


@pytest.mark.parametrize(
    ("trace", "kind"),
    [
        (contended(1), "kernel"),
        (contended(10), "kernel"),
        (contended(55), "waiting for another stream"),  # the long one ends after the late one
        (contended(55, cat="gpu_memcpy"), "launch delay"),  # a copy leaves the device to kernels
    ],
)
def test_a_kernel_that_waits_for_room_on_the_device_has_no_launch_delay(trace, kind, tmp_path):
    assert next(iter(critical_path(graph_of(trace, tmp_path)).kinds_ns)) == kind


def test_a_change_that_rounds_to_nothing_has_no_sign(tmp_path):
    graph = graph_of(Trace().step(1, 0, 1_000_000).op("aten::mm", 0, 100).op("aten::sort", 100, 999_800), tmp_path)
    text = render_critical_path(graph)
    assert "-0.0%" not in text
    assert "twice as fast: aten::mm" in text


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
