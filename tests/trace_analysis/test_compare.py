import re

import numpy as np
import pytest

from tests.support.simulated_training import KERNEL, Loop, simulated
from tests.support.traces import Trace, gpu
from training_profiler.base.errors import TraceError
from training_profiler.trace_analysis.communication import Runs, RunsOf, over_ranks
from training_profiler.trace_analysis.compare import compare
from training_profiler.trace_analysis.report.comparison import comparison_data, render_comparison
from training_profiler.trace_analysis.trace import analyse


def steps(*lengths, operator="aten::mm", has_gpu=True):
    trace, at = Trace(), 0
    for i, length in enumerate(lengths):
        trace.step(i, at, length).op(operator, at, 5)
        if has_gpu:
            trace.kernel("k", at, 10)
        at += length
    return trace


def compared(tmp_path, before, after):
    sides = (before.write(tmp_path, "before.json"), after.write(tmp_path, "after.json"))
    return compare(*(analyse(side) for side in sides))


def loops(tmp_path, before, after):
    return compared(tmp_path, simulated(before)[0], simulated(after)[0])


def test_difference_beyond_spread_of_steps_is_not_noise(tmp_path):
    row = compared(tmp_path, steps(100, 102, 98), steps(50, 51, 49)).differences[0]
    assert (row.name, row.before_ns, row.after_ns, row.change_ns) == ("step", 100_000, 50_000, -50_000)
    assert row.band_ns == pytest.approx(2 * (4e6 / 3 + 1e6 / 3) ** 0.5)
    assert row.is_noise is False


def test_difference_within_spread_is_noise(tmp_path):
    assert compared(tmp_path, steps(100, 150), steps(120, 110)).differences[0].is_noise is True


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


DIMS = {"Input Dims": [[64, 64], [64, 64]]}


def test_slower_kernel_shows_in_every_table_of_device_work(tmp_path):
    found = loops(tmp_path, Loop(kernels=10, kernel_us=200, inputs=DIMS), Loop(kernels=10, kernel_us=230, inputs=DIMS))
    names = {"kernel_kinds": "matmul", "kernels": KERNEL, "operators": "aten::mm", "operators_by_shape": "aten::mm"}
    for table, name in names.items():
        row = found.work[table][0]
        assert (row.name, row.before_ns, row.after_ns) == (name, 2_000_000, 2_300_000)
        assert (row.counts, row.band_ns, row.is_noise) == ((10, 10), 0, False)
    assert found.work["operators_by_shape"][0].shapes == "[[64,64],[64,64]]"
    assert found.work["host_operators"][0].change_ns == 0


def test_slower_operator_of_the_host_shows_in_the_table_of_the_host_alone(tmp_path):
    found = loops(tmp_path, Loop(host_us=20), Loop(host_us=50))
    by_name = {row.name: row for row in found.work["host_operators"]}
    assert by_name["aten::mm"].change_ns == 10 * 30_000
    assert not any(row.change_ns for name, rows in found.work.items() if name != "host_operators" for row in rows)


def test_shapes_of_one_operator_are_rows_of_their_own(tmp_path):
    def trace(second_us):
        trace = Trace()
        for i in range(2):
            at = 1000 * i
            trace.step(i, at, 1000).op("aten::mm", at, 20, **{"Input Dims": [[1], [1]]})
            trace.kernel("k", at + 50, 100, launched=(at + 5, 5)).op(
                "aten::mm", at + 30, 20, **{"Input Dims": [[2], [2]]}
            )
            trace.kernel("k", at + 200, second_us, launched=(at + 35, 5))
        return trace

    found = compared(tmp_path, trace(100), trace(60))
    assert [(row.shapes, row.change_ns) for row in found.work["operators_by_shape"]] == [
        ("[[2],[2]]", -40_000), ("[[1],[1]]", 0)
    ]  # fmt: skip
    assert [(row.name, row.change_ns) for row in found.work["operators"]] == [("aten::mm", -40_000)]


def test_band_of_work_is_three_standard_errors(tmp_path):
    found = loops(tmp_path, Loop(steps=4, kernels=1, jitter_us=100), Loop(steps=4, kernels=1, kernel_us=250))
    row = found.work["kernels"][0]
    assert (row.before_ns, row.after_ns) == (250_000, 250_000)
    # 200, 300, 200, 300 us: a standard deviation of 57.7 us, so a standard error of 28.9 us
    assert row.band_ns == pytest.approx(3 * 28_867.5, rel=1e-4)
    assert row.is_noise is True


def test_steps_without_a_kernel_count_as_zero(tmp_path):
    def trace(every):
        trace = steps(100, 100, 100, 100)
        for i in range(0, 4, every):
            trace.kernel("rare", 100 * i + 20, 8)
        return trace

    row = next(row for row in compared(tmp_path, trace(2), trace(1)).work["kernels"] if row.name == "rare")
    assert (row.before_ns, row.after_ns, row.counts) == (4000, 8000, (0.5, 1))
    assert row.band_ns == pytest.approx(3 * (64e6 / 3 / 4) ** 0.5)


def test_work_belongs_to_the_step_that_launched_it(tmp_path):
    trace = Trace().step(0, 0, 100).step(1, 100, 100).kernel("k", 150, 10, launched=(90, 5))
    found = compared(tmp_path, trace, trace)
    assert found.work["kernels"][0].before_ns == 5000
    assert found.work["kernels"][0].band_ns == pytest.approx(3 * (2 * 5000**2) ** 0.5)


def test_one_step_is_compared_without_a_band(tmp_path):
    found = compared(tmp_path, steps(100), steps(80, 80))
    assert (found.differences[0].change_ns, found.differences[0].is_noise) == (-20_000, None)
    assert all(row.band_ns is None for rows in found.work.values() for row in rows)
    assert "One step has no noise band: any difference may be chance." in render_comparison(found)


def test_other_kernels_of_another_device_are_gone_and_new(tmp_path):
    def trace(name, kernel):
        trace = Trace(deviceProperties=[gpu(name)])
        for i in range(2):
            at = 100 * i
            trace.step(i, at, 100).op("aten::mm", at, 9).kernel(kernel, at + 20, 30, launched=(at + 1, 2))
        return trace

    found = compared(tmp_path, trace("Tesla V100-SXM2", "volta_sgemm"), trace("AMD Instinct MI300X", "Cijk_Ailk"))
    assert {row.name: row.counts for row in found.work["kernels"]} == {"volta_sgemm": (1, 0), "Cijk_Ailk": (0, 1)}
    assert [(row.name, row.change_ns) for row in found.work["kernel_kinds"]] == [("matmul", 0)]
    text = render_comparison(found)
    assert "Devices: Tesla V100-SXM2 before, AMD Instinct MI300X after." in text
    assert [line.split()[-1] for line in text.splitlines() if line.startswith("matmul")] == ["new", "gone"]


def test_traces_of_host_and_device_are_compared_by_host_time(tmp_path):
    found = compared(tmp_path, steps(100, 100, has_gpu=False), steps(60, 60))
    assert [row.name for row in found.differences] == ["step"]
    assert list(found.work) == ["host_operators"]
    assert "Only the trace after has device work: times of the host are compared." in render_comparison(found)


def test_traces_without_steps_are_compared_by_what_recurs_or_whole(tmp_path):
    def trace(repetitions):
        trace = simulated(Loop(steps=repetitions, is_marked=False, kernels=4, read=True))[0]
        reads = [event for event in trace.events if event["name"] == "aten::item"]
        for event in reads:
            trace.mark("Optimizer.step#SGD.step", event["ts"], 1)
        return trace

    found = compared(tmp_path, trace(3), trace(6))
    assert found.unit == "Optimizer.step#SGD.step"
    assert {row.name: (row.before_ns, row.counts) for row in found.work["kernels"]} == {KERNEL: (800_000, (4, 4))}
    whole = compared(tmp_path, *(simulated(Loop(steps=1, is_marked=False, kernel_us=us))[0] for us in (200, 300)))
    assert whole.unit == "recording"
    assert whole.work["kernels"][0].change_ns == 10 * 100_000


@pytest.mark.parametrize("has_shapes", [True, False])
def test_parts_add_up_in_every_table(has_shapes, tmp_path):
    inputs = DIMS if has_shapes else {}
    found = loops(tmp_path, Loop(kernels=3, inputs=inputs), Loop(kernels=5, read=True, inputs=inputs, kernel_us=90))
    sums = [sum(row.change_ns for row in found.work[name]) for name in ("kernel_kinds", "kernels", "operators")]
    assert sums == [5 * 90_000 - 3 * 200_000] * 3
    assert ("operators_by_shape" in found.work) is has_shapes


def test_json_has_every_row_and_text_fits_the_terminal(tmp_path):
    found = loops(tmp_path, Loop(inputs=DIMS), Loop(inputs=DIMS, kernel_us=250, kernels=12))
    data = comparison_data(found)
    assert data["per"] == "step"
    assert data["kernels"] == [
        {
            "name": KERNEL,
            "shapes": None,
            "count_before": 10,
            "count_after": 12,
            "before_ms": 2,
            "after_ms": 3,
            "difference_ms": 1,
            "noise_band_ms": 0,
            "is_noise": False,
        }
    ]
    lines = render_comparison(found).splitlines()
    assert max(map(len, lines)) <= 80
    assert f"    runs 10 before, 12 after: {KERNEL}" in lines


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


def nested_steps(*, inner_us, count=4, outer="forward"):
    """Return steps with ``aten::mm`` in two operators; in the second it takes ``inner_us`` on either side."""
    trace = Trace()
    for i in range(count):
        at = 1000 * i
        trace.step(i, at, 1000).mark(outer, at, 400).op("aten::linear", at + 10, 100).op("aten::mm", at + 20, 50)
        trace.op("aten::addmm", at + 200, 150).op("aten::mm", at + 210, inner_us)
        trace.kernel("k1", at + 100, 50, launched=(at + 25, 5)).kernel("k2", at + 300, inner_us, launched=(at + 215, 5))
    return trace


def test_call_tree_shows_in_which_caller_an_operator_became_slower(tmp_path):
    found = compared(tmp_path, nested_steps(inner_us=50), nested_steps(inner_us=90))
    own, total = ({row.path: getattr(row, part).change_ns for row in found.call_tree if getattr(row, part).change_ns}
                  for part in ("device_self", "device_total"))  # fmt: skip
    slower = ("forward", "aten::addmm", "aten::mm")
    assert own == {slower: 40_000}
    assert total == {slower[:1]: 40_000, slower[:2]: 40_000, slower: 40_000}
    by_path = {row.path: row for row in found.call_tree}
    assert (by_path[slower].host_self.change_ns, by_path[slower[:2]].host_self.change_ns) == (40_000, -40_000)
    assert by_path[slower].host_self.is_noise is False
    text = render_comparison(found)
    assert re.search(r"aten::mm +0\.050 +0\.090 +\+0\.040 +±0\.000 +more\n +in forward > aten::addmm\n", text)


def test_marks_of_steps_are_no_calls_of_what_is_around_them(tmp_path):
    trace = nested_steps(inner_us=50).mark("epoch", 0, 4000)
    (row,) = (row for row in compared(tmp_path, trace, trace).call_tree if row.path == ("epoch",))
    assert row.counts == (0.25, 0.25)  # once in four steps


def test_parts_of_the_call_tree_add_up_to_its_roots(tmp_path):
    found = compared(tmp_path, nested_steps(inner_us=50), nested_steps(inner_us=90))
    for part in ("host", "device"):
        for row in found.call_tree:
            within = [inner for inner in found.call_tree if inner.path[: len(row.path)] == row.path]
            own = sum(getattr(inner, f"{part}_self").after_ns for inner in within)
            assert getattr(row, f"{part}_total").after_ns == own


def test_call_tree_of_one_step_has_no_band_and_a_path_of_one_side_is_new(tmp_path):
    found = compared(
        tmp_path, nested_steps(inner_us=50, count=1), nested_steps(inner_us=50, count=1, outer="other forward")
    )
    rows = {row.path: row for row in found.call_tree}
    assert rows["forward",].host_total.band_ns is None
    assert (rows["forward",].counts, rows["other forward",].counts) == ((1, 0), (0, 1))
    text = render_comparison(found)
    assert re.search(r"other forward .* new\n", text)
    assert comparison_data(found)["call_tree"][0]["path"] == ["forward"]
