"""Steps before the first capture, and after it."""

from dataclasses import replace

import pytest

from tests.support.recording import snapshot_of
from training_profiler.aggregation.step_totals import AroundFirstCapture
from training_profiler.model.snapshot import AroundCapture, DeviceTimingStats
from training_profiler.reports.console import render_final

MS = 1_000_000


def around(*stretches):
    """Add stretches of (ms of each step, indices of the slowed ones)."""
    steps = AroundFirstCapture()
    for durations, slowed in stretches:
        steps.add([ms * MS for ms in durations], slowed)
    return steps.compared()


def test_medians_leave_out_the_steps_that_the_capture_slowed():
    durations = [10] * 40 + [90] * 3 + [12] * 60
    found = around((durations, [40, 41, 42]))
    assert found == AroundCapture(pytest.approx(0.010), pytest.approx(0.012), error_s=0.0)
    in_parts = around((durations[:41], [40]), (durations[41:60], [0, 1]), (durations[60:], []))
    assert in_parts == found


@pytest.mark.parametrize(
    "stretches",
    [
        [([99] * 100 + [10] * 50, []), ([90] + [12] * 50 + [99] * 100, [0])],  # further than 50 steps away
        [([10] * 50 + [90] + [12] * 20 + [90] + [12] * 40, [50, 71])],  # a second capture
    ],
)
def test_only_the_50_steps_next_to_the_first_capture_count(stretches):
    found = around(*stretches)
    assert (found.before_s, found.after_s) == (pytest.approx(0.010), pytest.approx(0.012))


@pytest.mark.parametrize(
    ("durations", "slowed"),
    [([10] * 500, []), ([10] * 19 + [90] + [12] * 60, [19]), ([10] * 40 + [90] + [12] * 49, [40]), ([], [])],
    ids=["no capture", "too early", "too late", "no steps"],
)
def test_without_enough_steps_nothing_is_compared(durations, slowed):
    assert around((durations, slowed)) is None


def line_of(before_s, after_s, error_s=0.001, device=None):
    run = snapshot_of({"forward_pass": 1.0}, steps=200)
    step = replace(run.step, around_capture=AroundCapture(before_s, after_s, error_s))
    text = " ".join(render_final(replace(run, step=step, device=device), (), is_full=True).split())
    return text.partition("Median step after the first capture: ")[2].partition(")")[0]


def test_summary_says_both_and_whether_they_differ():
    cuda = DeviceTimingStats("cuda", "H100", "events", 100)
    assert line_of(0.100, 0.1005) == "100 ms, 100 ms before it (no clear difference"
    assert line_of(0.100, 0.104, error_s=0.002) == "104 ms, 100 ms before it (no clear difference"
    assert line_of(0.100, 0.112) == "112 ms, 100 ms before it (12% longer"
    assert line_of(0.100, 0.080) == "80.0 ms, 100 ms before it (20% shorter"
    assert line_of(0.100, 0.112, device=cuda).startswith("112 ms, 100 ms before it (12% longer; torch's profiler may")


def test_a_run_without_a_capture_has_no_such_line():
    assert "first capture" not in render_final(snapshot_of({"forward_pass": 1.0}, steps=200), (), is_full=True)
