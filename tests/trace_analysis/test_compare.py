"""Two traces side by side, and runs of collectives over ranks; what a comparison says is in a golden file."""

import json
from pathlib import Path

import numpy as np
import pytest

from tests.support.golden import assert_golden
from tests.support.simulated_training import Loop, simulated
from tests.support.traces import Trace, gpu
from training_profiler.base.errors import TraceError
from training_profiler.trace_analysis.communication import Runs, RunsOf, over_ranks
from training_profiler.trace_analysis.compare import compare
from training_profiler.trace_analysis.report_several import comparison_data, render_comparison
from training_profiler.trace_analysis.trace import analyse


def steps(*lengths, operator="aten::mm", has_gpu=True, rare_every=0):
    trace, at = Trace(), 0
    for i, length in enumerate(lengths):
        trace.step(i, at, length).op(operator, at, 5)
        if has_gpu:
            trace.kernel("k", at, 10)
        if rare_every and not i % rare_every:
            trace.kernel("rare", at + 20, 8)
        at += length
    return trace


def compared(tmp_path, before, after):
    sides = (before.write(tmp_path, "before.json"), after.write(tmp_path, "after.json"))
    return compare(*(analyse(side) for side in sides))


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        (steps(100, 100), steps(), r"has no events with a duration"),
        (Trace().op("a", 0, 1), steps(1, 1), r"before\.json has no marked step, and .*after\.json has 2 steps"),
        (steps(1), Trace().op("a", 0, 1), r"after\.json has no marked step, and .*before\.json has 1 step: call"),
        (
            Trace().op("aten::mm", 0, 1),
            Trace().op("aten::bmm", 0, 1),
            r"the recordings are not of the same work: only 0% of the calls",
        ),
        (
            steps(100, 100),
            steps(100, 100, operator="aten::conv2d"),
            r"not of the same program: only 0% of the calls of operators are in both",
        ),
    ],
)
def test_incomparable_traces_are_refused(before, after, message, tmp_path):
    with pytest.raises(TraceError, match=message):
        compared(tmp_path, before, after)


def loop(**of):
    return simulated(Loop(**of))[0]


def of_two_shapes(second_us):
    trace = Trace()
    for i in range(2):
        at = 1000 * i
        trace.step(i, at, 1000).op("aten::mm", at, 20, **{"Input Dims": [[1], [1]]})
        trace.op("aten::mm", at + 30, 20, **{"Input Dims": [[2], [2]]}).kernel("k", at + 50, 100, launched=(at + 5, 5))
        trace.kernel("k", at + 200, second_us, launched=(at + 35, 5))
    return trace


def launched_before():
    return Trace().step(0, 0, 100).step(1, 100, 100).kernel("k", 150, 10, launched=(90, 5))


def on_device(name, kernel):
    trace = Trace(deviceProperties=[gpu(name)])
    for i in range(2):
        at = 100 * i
        trace.step(i, at, 100).op("aten::mm", at, 9).kernel(kernel, at + 20, 30, launched=(at + 1, 2))
    return trace


def updating(repetitions):
    trace = loop(steps=repetitions, is_marked=False, kernels=4, read=True)
    for event in [event for event in trace.events if event["name"] == "aten::item"]:
        trace.mark("Optimizer.step#SGD.step", event["ts"], 1)
    return trace


def nested_steps(*, inner_us=50, count=4, outer="forward"):
    """Return steps with ``aten::mm`` in two operators; in the second it takes ``inner_us`` on either side."""
    trace = Trace()
    for i in range(count):
        at = 1000 * i
        trace.step(i, at, 1000).mark(outer, at, 400).op("aten::linear", at + 10, 100).op("aten::mm", at + 20, 50)
        trace.op("aten::addmm", at + 200, 150).op("aten::mm", at + 210, inner_us)
        trace.kernel("k1", at + 100, 50, launched=(at + 25, 5)).kernel("k2", at + 300, inner_us, launched=(at + 215, 5))
    return trace


DIMS = {"Input Dims": [[64, 64], [64, 64]]}
PAIRS = {
    "a difference beyond the spread of steps is not noise": (steps(100, 102, 98), steps(50, 51, 49)),
    "one within the spread is": (steps(100, 150), steps(120, 110)),
    "a slower kernel shows in every table of device work": (
        loop(inputs=DIMS),
        loop(kernel_us=230, inputs=DIMS),
    ),
    "a slower operator of the host shows in the table of the host alone": (loop(host_us=20), loop(host_us=50)),
    "shapes of one operator are rows of their own": (of_two_shapes(100), of_two_shapes(60)),
    "the band of work is three standard errors": (
        loop(steps=4, kernels=1, jitter_us=100),  # 200, 300, 200, 300 us: a standard error of 28.9 us
        loop(steps=4, kernels=1, kernel_us=250),
    ),
    "steps without a kernel count as zero": (
        steps(100, 100, 100, 100, rare_every=2),
        steps(100, 100, 100, 100, rare_every=1),
    ),
    "work belongs to the step that launched it": (launched_before(), launched_before()),
    "one step is compared without a band": (steps(100), steps(80, 80)),
    "other kernels of another device are gone and new": (
        on_device("Tesla V100-SXM2", "volta_sgemm"),
        on_device("AMD Instinct MI300X", "Cijk_Ailk"),
    ),
    "traces of host and device are compared by host time": (steps(100, 100, has_gpu=False), steps(60, 60)),
    "traces without steps are compared by what recurs": (updating(3), updating(6)),
    "or whole": (loop(steps=1, is_marked=False), loop(steps=1, is_marked=False, kernel_us=300)),
    "counts differ too": (loop(inputs=DIMS), loop(inputs=DIMS, kernel_us=250, kernels=12)),
    "the call tree shows in which caller an operator became slower": (nested_steps(), nested_steps(inner_us=90)),
    "marks of steps are no calls of what is around them": (
        nested_steps().mark("epoch", 0, 4000),
        nested_steps().mark("epoch", 0, 4000),
    ),
    "the call tree of one step has no band, and a path of one side is new": (
        nested_steps(count=1),
        nested_steps(count=1, outer="other forward"),
    ),
}


def said(claim, found):
    data = [f"{key}: {json.dumps(value)}" for key, value in comparison_data(found).items() if value]
    return "\n".join([f"##### {claim}", *data, render_comparison(found)])


def test_what_a_comparison_says_is_as_before(tmp_path):
    texts = [said(claim, compared(tmp_path, *pair)) for claim, pair in PAIRS.items()]
    assert max(len(line) for text in texts for line in text.splitlines() if ": [" not in line) <= 80
    assert_golden(Path(__file__).parents[1] / "golden" / "trace_comparisons.txt", "\n".join(texts))


@pytest.mark.parametrize("has_shapes", [True, False])
def test_parts_add_up_in_every_table(has_shapes, tmp_path):
    inputs = DIMS if has_shapes else {}
    sides = loop(kernels=3, inputs=inputs), loop(kernels=5, read=True, inputs=inputs, kernel_us=90)
    found = compared(tmp_path, *sides)
    sums = [sum(row.change_ns for row in found.work[name]) for name in ("kernel_kinds", "kernels", "operators")]
    assert sums == [5 * 90_000 - 3 * 200_000] * 3
    assert ("operators_by_shape" in found.work) is has_shapes


def test_parts_of_the_call_tree_add_up_to_its_roots(tmp_path):
    found = compared(tmp_path, nested_steps(inner_us=50), nested_steps(inner_us=90))
    for part in ("host", "device"):
        for row in found.call_tree:
            within = [inner for inner in found.call_tree if inner.path[: len(row.path)] == row.path]
            own = sum(getattr(inner, f"{part}_self").after_ns for inner in within)
            assert getattr(row, f"{part}_total").after_ns == own


def runs(group="", members="", sequence=None, **durations):
    return {
        RunsOf(kind, group, members): Runs(
            np.arange(len(values)), np.array(values), np.array(sequence or [-1] * len(values))
        )
        for kind, values in durations.items()
    }


def test_waiting_is_the_time_beyond_the_last_rank_to_arrive():
    found = over_ranks({0: runs(all_reduce=[10, 50]), 1: runs(all_reduce=[30, 20])})
    assert [(total.kind, total.count, total.transfer_ns, total.waiting_ns) for total in found] == [
        ("all_reduce", 2, 15.0, 12.5)
    ]


def test_rank_that_waits_least_is_the_awaited_rank():
    assert (
        over_ranks({0: runs(all_reduce=[90]), 3: runs(all_reduce=[10]), 5: runs(all_reduce=[80])})[0].latest_rank == 3
    )


@pytest.mark.parametrize(
    "ranks", [{}, {0: runs(a=[1])}, {0: runs(a=[1]), 1: runs(a=[1, 2])}, {0: runs(a=[1]), 1: runs(b=[1])}]
)
def test_collectives_missing_on_a_rank_are_left_out(ranks):
    assert over_ranks(ranks) == []


def test_runs_of_process_groups_match_within_their_group():
    pairs = {0: "[0, 1]", 1: "[0, 1]", 2: "[2, 3]", 3: "[2, 3]"}
    lengths = {0: [10, 10], 1: [30, 10], 2: [100], 3: [50]}
    (found,) = over_ranks({rank: runs("1", pairs[rank], all_reduce=lengths[rank]) for rank in pairs})
    # Rank 0 comes last; with the k-th run over all ranks, rank 2 would seem to wait for it.
    assert (found.transfer_ns, found.waiting_ns) == ((2 * 20 + 2 * 50) / 6, (20 + 50) / 6)
    assert dict(found.late) == {0: 20 / 70, 3: 50 / 70}


def test_groups_whose_ranks_are_unknown_must_be_on_all_ranks():
    assert over_ranks({0: runs("tp", a=[1]), 1: runs("tp", a=[2]), 2: runs("dp", a=[3])}) == []


def test_runs_match_by_their_number_where_the_trace_has_it():
    first = runs("0", "[0, 1]", [7, 8, 9], all_reduce=[50, 60, 70])
    second = runs("0", "[0, 1]", [9, 10, 8], all_reduce=[20, 5, 60])
    (found,) = over_ranks({0: first, 1: second})
    assert (found.count, found.transfer_ns, found.waiting_ns) == (2, 40.0, 12.5)
    assert found.latest_rank == 1


def test_numbers_that_recur_do_not_match_runs():
    first, second = (runs("0", "[0, 1]", [3, 3], all_reduce=lengths) for lengths in ([10, 50], [30, 20]))
    (found,) = over_ranks({0: first, 1: second})
    assert (found.count, found.transfer_ns) == (2, 15.0)
