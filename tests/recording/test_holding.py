"""What may still be rewritten is held back; what is handed out stays in order."""

import threading
import weakref

import pytest

from training_profiler.recording.event_codes import LOOP_BEGIN, STEP_END
from training_profiler.recording.recorder import MAX_MARKS
from training_profiler.recording.section import FLUSH_AT_MOST, ThreadBuffer


@pytest.fixture
def held(recorder, clock):
    """A recorder with a span up to 1010 and another from there on, of which what is after 1010 is held back."""
    for name in ("a", "b"):
        with recorder.section(name):
            clock.advance_ns(10)
        clock.advance_ns(5)
    recorder.watermark_ns = 1010
    return recorder


def test_what_is_held_back_is_handed_out_once_it_is_let_go(held):
    batch = held.drain()
    assert (batch.until_ns, batch.threads[0].events) == (1010, [1000, 1, 1010, -1])
    held.watermark_ns = None
    batch = held.drain()
    assert (batch.until_ns, batch.threads[0].events) == (1030, [1015, 2, 1025, -2])


def test_marks_of_what_is_held_back_are_held_back(held, clock):
    held.mark(STEP_END, 1005)
    held.mark(LOOP_BEGIN)
    assert held.drain().marks == [(STEP_END, 1005)]
    held.release(clock())
    assert held.drain().marks == [(LOOP_BEGIN, 1030)]


def test_the_end_of_a_step_lets_go_what_came_before(held):
    held.mark(STEP_END)
    assert held.drain().until_ns == 1030


def test_a_batch_never_ends_before_the_one_before(held):
    assert held.drain().until_ns == 1010
    held.watermark_ns = 1003
    assert held.drain().until_ns == 1010


def test_a_hold_in_the_future_holds_nothing_back(held, clock):
    held.watermark_ns = 2000
    assert held.drain().until_ns == clock()


def test_other_threads_are_held_back_to_the_same_moment(held, clock):
    alive = threading.Event()
    other = ThreadBuffer("other", weakref.ref(alive))
    other.events += [1002, 1, 1012, -1]
    held.buffers.append(other)
    assert [thread.events for thread in held.drain().threads if thread.name == "other"] == [[1002, 1]]


def test_what_a_thread_that_has_ended_left_is_held_back_with_it(held):
    other = ThreadBuffer("other", lambda: None)
    other.events += [1002, 1, 1012, -1]
    held.buffers.append(other)

    def of_other(batch):
        return [(thread.is_alive, thread.events) for thread in batch.threads if thread.name == "other"]

    assert of_other(held.drain()) == [(True, [1002, 1])]
    held.watermark_ns = None
    assert of_other(held.drain()) == [(False, [1012, -1])]
    assert of_other(held.drain()) == []


def test_letting_go_means_nothing_where_nothing_is_held_back(recorder):
    recorder.release(5)
    assert recorder.watermark_ns is None


def test_it_is_held_at_a_time_while_nothing_later_may_be_handed_out(held):
    assert held.is_blocked_at(1010)
    assert held.is_blocked_at(1020)
    assert not held.is_blocked_at(1009)
    held.watermark_ns = None
    assert not held.is_blocked_at(1010)


def test_what_is_held_back_is_drained_all_the_same_when_it_is_too_much(held):
    held.buffer().events.extend([1030, 1] * (2 * FLUSH_AT_MOST))
    assert not held.is_blocked_at(1010)


def test_it_is_backed_up_by_marks_or_by_events(recorder):
    assert not recorder.is_backed_up()
    recorder.marks += [(STEP_END, 1000)] * (MAX_MARKS + 1)
    assert recorder.is_backed_up()
    recorder.discard()
    recorder.buffer().events.extend([1000, 1] * FLUSH_AT_MOST)
    assert recorder.is_backed_up()


def test_a_mark_is_never_before_the_one_before(recorder, clock):
    assert recorder.mark(STEP_END, 1500) == 1500
    assert recorder.mark(STEP_END, 1400) == 1500
    assert recorder.mark(STEP_END, 1600) == 1600


def test_a_drain_waits_for_a_thread_that_changes_what_it_recorded(recorder, clock):
    with recorder.section("a"):
        clock.advance_ns(1)
    drained = threading.Event()

    def drain():
        recorder.drain()
        drained.set()

    thread = threading.Thread(target=drain)
    with recorder.buffer().rewrite_lock:
        thread.start()
        assert not drained.is_set()
        assert recorder.backlog() == 4
    thread.join()
    assert recorder.backlog() == 0
