"""Steps end without the session where nothing of it is due; it is asked at all others."""

import pytest

from tests.support.recording import FakeRun
from training_profiler.instrumentation.loop_detection.loader_passes import Passes
from training_profiler.instrumentation.loop_detection.step_detector import StepEnds
from training_profiler.recording.event_codes import EPOCH_BEGIN, STEP_END
from training_profiler.recording.recorder import StepCount

FAR_NS = 1_000_000


class Iterator:
    pass


class Steps:
    """A session, and the ends of its steps."""

    def __init__(self):
        self.recorder, self.passes, self.count = FakeRun().recorder, Passes(), StepCount()
        self.recorder.watermark_ns = 1_000
        self.asked = []
        self.ends = StepEnds(self.recorder, self.asked.append)
        self.ends.follow(self.passes)

    def be_quiet(self, before=100, until_ns=FAR_NS):
        self.recorder.be_quiet(self.count, before, until_ns)

    def end_at(self, *times_ns):
        for at_ns in times_ns:
            self.ends(at_ns)


@pytest.fixture
def steps():
    return Steps()


def test_session_is_asked_until_it_says_otherwise(steps):
    steps.end_at(2_000, 3_000)
    assert (steps.asked, steps.recorder.marks, steps.count.steps) == ([2_000, 3_000], [], 0)


def test_quiet_step_is_marked_and_counted(steps):
    steps.end_at(2_000)
    steps.be_quiet()
    steps.end_at(3_000, 4_000)
    assert steps.asked == [2_000]
    assert steps.recorder.marks == [3_000, STEP_END, 4_000, STEP_END]
    assert (steps.count.steps, steps.recorder.watermark_ns, steps.recorder.quiet_end_ns) == (2, 4_000, 4_000)


def test_nothing_is_held_back_where_nothing_was(steps):
    steps.end_at(2_000)
    steps.be_quiet()
    steps.recorder.watermark_ns = None
    steps.end_at(3_000)
    assert steps.recorder.watermark_ns is None


def test_session_is_asked_at_its_time(steps):
    steps.end_at(2_000)
    steps.be_quiet(until_ns=4_000)
    steps.end_at(3_999, 4_000)
    assert steps.asked == [2_000, 4_000]


def test_session_is_asked_at_its_step(steps):
    steps.end_at(2_000)
    steps.be_quiet(before=3)
    steps.end_at(3_000, 4_000, 5_000)
    assert steps.asked == [2_000, 5_000]  # the third


def test_session_is_asked_when_batches_come_from_another_pass(steps):
    iterator = Iterator()
    steps.end_at(2_000)
    steps.be_quiet()
    steps.passes.of(iterator, True)
    steps.end_at(3_000, 4_000)
    assert steps.asked == [2_000, 3_000]


def test_session_is_asked_where_a_mark_is_later(steps):
    steps.end_at(2_000)
    steps.be_quiet()
    steps.recorder.mark(EPOCH_BEGIN, 5_000)
    steps.end_at(4_000)
    assert steps.asked == [2_000, 4_000]


def test_another_session_is_asked_again(steps):
    steps.end_at(2_000)
    steps.be_quiet()
    steps.recorder.listen(lambda: None)
    steps.end_at(3_000)
    assert steps.asked == [2_000, 3_000]


def test_number_of_the_step_to_ask_at_has_no_limit(steps):
    steps.end_at(2_000)
    steps.be_quiet(before=10**30)
    steps.end_at(3_000)
    assert steps.count.steps == 1
