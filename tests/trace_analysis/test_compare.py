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
    "a slower kernel shows in every table of device work": (loop(inputs=DIMS), loop(kernel_us=230, inputs=DIMS)),
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
        for path, times in found.call_tree.items():
            within = [inner for other, inner in found.call_tree.items() if other[: len(path)] == path]
            own = sum(inner[f"{part}_self"].after_ns for inner in within)
            assert times[f"{part}_total"].after_ns == own


def runs(group="", members="", sequence=None, **durations):
    return {
        RunsOf(kind, group, members): Runs(
            np.arange(len(values)), np.array(values), np.array(sequence or [-1] * len(values))
        )
        for kind, values in durations.items()
    }


OF_ONE, OF_OTHER = "[0, 1]", "[2, 3]"
FIRST = runs("0", OF_ONE, [7, 8, 9], all_reduce=[50, 60, 70])
# Runs by rank, and of what they are said: how many, transfer and waiting of each, and who is waited for.
OVER_RANKS = {
    "waiting is the time beyond the last rank to arrive": (
        {0: runs(all_reduce=[10, 50]), 1: runs(all_reduce=[30, 20])}, (2, 15.0, 12.5, {0: 0.4, 1: 0.6})
    ),
    "the rank that waits least is waited for": (
        {0: runs(all_reduce=[90]), 3: runs(all_reduce=[10]), 5: runs(all_reduce=[80])}, (1, 10.0, 50.0, {3: 1.0})
    ),
    "runs of process groups match within their group: with the k-th of all, rank 2 would wait for rank 0": (
        {0: runs("1", OF_ONE, all_reduce=[10, 10]), 1: runs("1", OF_ONE, all_reduce=[30, 10]),
         2: runs("1", OF_OTHER, all_reduce=[100]), 3: runs("1", OF_OTHER, all_reduce=[50])},
        (2, (2 * 20 + 2 * 50) / 6, (20 + 50) / 6, {3: 50 / 70, 0: 20 / 70}),
    ),
    "runs match by their number where the trace has it": (
        {0: FIRST, 1: runs("0", OF_ONE, [9, 10, 8], all_reduce=[20, 5, 60])}, (2, 40.0, 12.5, {1: 1.0})
    ),
    "numbers that recur match nothing": (
        {0: runs("0", OF_ONE, [3, 3], a=[10, 50]), 1: runs("0", OF_ONE, [3, 3], a=[30, 20])},
        (2, 15.0, 12.5, {0: 0.4, 1: 0.6}),
    ),
    "no rank": ({}, None),
    "a single rank": ({0: runs(a=[1])}, None),
    "other counts": ({0: runs(a=[1]), 1: runs(a=[1, 2])}, None),
    "other kinds": ({0: runs(a=[1]), 1: runs(b=[1])}, None),
    "a group whose ranks are unknown must be on all ranks": (
        {0: runs("tp", a=[1]), 1: runs("tp", a=[2]), 2: runs("dp", a=[3])}, None
    ),
}  # fmt: skip


@pytest.mark.parametrize("claim", OVER_RANKS)
def test_collectives_over_ranks_are_divided_into_transfer_and_waiting(claim):
    ranks, expected = OVER_RANKS[claim]
    found = [(each.count, each.transfer_ns, each.waiting_ns, dict(each.late)) for each in over_ranks(ranks)]
    assert found == ([] if expected is None else [expected])
