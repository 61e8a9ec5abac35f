"""Steps end without the session where nothing of it is due; it is asked at all others."""

import pytest

from tests.support.recording import FakeRun
from training_profiler.instrumentation.loop_detection.loader_passes import Passes
from training_profiler.instrumentation.loop_detection.step_detector import StepEnds
from training_profiler.recording.event_codes import EPOCH_BEGIN, STEP_END
from training_profiler.recording.recorder import StepCount


class Iterator:
    pass


class Steps:
    """A session, and the ends of its steps; it is asked at the first, and lets the next ones end quietly."""

    def __init__(self, before=100, until_ns=1_000_000):
        self.recorder, self.passes, self.count = FakeRun().recorder, Passes(), StepCount()
        self.recorder.watermark_ns = 1_000
        self.asked = []
        self.ends = StepEnds(self.recorder, self.asked.append)
        self.ends.follow(self.passes)
        self.ends(2_000)
        self.recorder.be_quiet(self.count, before, until_ns)

    def end_at(self, *times_ns):
        for at_ns in times_ns:
            self.ends(at_ns)


def test_session_is_asked_until_it_says_otherwise():
    steps = Steps()
    steps.recorder.be_quiet(None)
    steps.end_at(3_000)
    assert (steps.asked, steps.recorder.marks, steps.count.steps) == ([2_000, 3_000], [], 0)


def test_quiet_step_is_marked_and_counted():
    steps = Steps(before=10**30)
    steps.end_at(3_000, 4_000)
    assert steps.asked == [2_000]
    assert steps.recorder.marks == [3_000, STEP_END, 4_000, STEP_END]
    assert (steps.count.steps, steps.recorder.watermark_ns, steps.recorder.quiet_end_ns) == (2, 4_000, 4_000)


def test_nothing_is_held_back_where_nothing_was():
    steps = Steps()
    steps.recorder.watermark_ns = None
    steps.end_at(3_000)
    assert steps.recorder.watermark_ns is None


ITERATOR = Iterator()


@pytest.mark.parametrize(
    ("due", "happens", "asked"),
    [
        ({"until_ns": 4_000}, lambda steps: None, 4_000),
        ({"before": 3}, lambda steps: None, 5_000),
        ({}, lambda steps: steps.passes.of(ITERATOR, True), 3_999),
        ({}, lambda steps: steps.recorder.mark(EPOCH_BEGIN, 4_500), 3_999),
        ({}, lambda steps: steps.recorder.listen(lambda: None), 3_999),
    ],
    ids=["time", "step", "pass", "later mark", "another session"],
)
def test_session_is_asked_where_something_is_due(due, happens, asked):
    steps = Steps(**due)
    happens(steps)
    steps.end_at(3_999, 4_000, 5_000)
    assert steps.asked[:2] == [2_000, asked]
