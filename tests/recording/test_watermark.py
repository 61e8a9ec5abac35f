"""Events above the watermark are not drained, and batches stay in order."""

import pytest

from training_profiler.recording.event_codes import LOOP_BEGIN, STEP_END
from training_profiler.recording.recorder import MAX_MARKS
from training_profiler.recording.section import FLUSH_AT_MOST


@pytest.fixture
def held(recorder, clock):
    """A recorder with one span until 1010 and one from there on; the watermark is 1010."""
    for name in ("a", "b"):
        with recorder.section(name):
            clock.advance_ns(10)
        clock.advance_ns(5)
    recorder.watermark_ns = 1010
    return recorder


def test_marks_after_the_watermark_are_not_drained(held, clock):
    held.mark(STEP_END, 1005)
    held.mark(LOOP_BEGIN)
    assert list(held.drain().marks) == [1005, STEP_END]
    held.release(clock())
    assert list(held.drain().marks) == [1030, LOOP_BEGIN]
    held.mark(STEP_END)  # earlier events are final
    assert held.watermark_ns == 1030
    held.watermark_ns = None
    held.release(5)
    assert held.watermark_ns is None


def test_batch_never_ends_before_the_last_one(held):
    assert held.drain().until_ns == 1010
    held.watermark_ns = 1003
    assert held.drain().until_ns == 1010


def test_is_blocked_while_the_watermark_stands_still(held):
    assert held.is_blocked_at(1010)
    assert held.is_blocked_at(1020)
    assert not held.is_blocked_at(1009)
    held.buffer().events.extend([1030, 1] * (2 * FLUSH_AT_MOST))
    assert not held.is_blocked_at(1010)  # there are too many
    held.discard()
    assert held.is_blocked_at(1010)
    held.watermark_ns = None
    assert not held.is_blocked_at(1010)


def test_is_backed_up_by_marks_or_events(recorder):
    assert not recorder.is_backed_up()
    recorder.marks.extend([1000, STEP_END] * (MAX_MARKS + 1))
    assert recorder.is_backed_up()
    recorder.discard()
    recorder.buffer().events.extend([1000, 1] * FLUSH_AT_MOST)
    assert recorder.is_backed_up()


def test_marks_never_go_back_in_time(recorder, clock):
    assert recorder.mark(STEP_END, 1500) == 1500
    assert recorder.mark(STEP_END, 1400) == 1500
    assert recorder.mark(STEP_END, 1600) == 1600


@pytest.mark.parametrize(
    ("at_ns", "end_ns", "until_ns", "marks"), [(None, 1030, 1020, []), (1005, 1005, 1005, [1005, STEP_END])]
)
def test_step_end_holds_back_what_is_not_final_and_what_is_later(held, at_ns, end_ns, until_ns, marks):
    assert held.mark(STEP_END, at_ns, final_ns=1020) == end_ns
    batch = held.drain()
    assert (batch.until_ns, list(batch.marks)) == (until_ns, marks)
