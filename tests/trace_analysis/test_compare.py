import numpy as np
import pytest

from tests.support.traces import Trace
from training_profiler.errors import TraceError
from training_profiler.trace_analysis.analysis import analyse
from training_profiler.trace_analysis.communication import over_ranks
from training_profiler.trace_analysis.compare import compare


def steps(*lengths, operator="aten::mm", has_gpu=True):
    trace, at = Trace(), 0
    for i, length in enumerate(lengths):
        trace.step(i, at, length).op(operator, at, 5)
        if has_gpu:
            trace.kernel("k", at, 10)
        at += length
    return trace


def compared(tmp_path, before, after):
    return compare(analyse(before.write(tmp_path, "before.json")), analyse(after.write(tmp_path, "after.json")))


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
        (
            steps(100),
            steps(100, 100),
            r"before\.json has one step, and a comparison needs 2: record more, and call profiler\.step\(\) after each",
        ),
        (steps(100, 100), steps(), r"has no events with a duration"),
        (Trace().op("a", 0, 1), steps(1, 1), r"has no marked step, and"),
        (
            steps(100, 100),
            steps(100, 100, has_gpu=False),
            r"only one of the two traces has device work: .*after\.json has none",
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


def runs(**durations):
    return {kind: np.array(values, np.int64) for kind, values in durations.items()}


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
