import pytest

from tests.support.recording import FakeClock
from training_profiler.instrumentation.loop_detection.pending_events import MOST_HELD, NS_PER_DRAIN, PendingEvents
from training_profiler.recording.recorder import EPOCH_BEGIN, LOOP_BEGIN, Recorder
from training_profiler.recording.section import DISCARDED, FLUSH_AT_MOST

A, B, C, V = 1, 2, 3, 9  # codes; V is what is put around others


class Tapes:
    """A tape of a recorder on a clock of ns since 0; hands out when the recorder is asked."""

    def __init__(self):
        self.clock = FakeClock(0)
        self.recorder = Recorder(clock=self.clock)
        self.pending = PendingEvents(self.recorder)
        self.handed_out = []
        self.recorder.on_full = self.drain

    def note(self, *events):
        """Note (ns, code) after (ns, code)."""
        for ns, code in events:
            self.clock.now_ns = ns
            self.pending.note(code)

    def drain(self):
        serial = self.recorder.thread_serial()
        flat = next(thread.events for thread in self.recorder.drain().threads if thread.serial == serial)
        self.handed_out += pairs(flat)

    @property
    def kept(self):
        return pairs(self.pending.events)


def pairs(flat):
    return list(zip(flat[::2], flat[1::2], strict=True))


@pytest.fixture
def tapes() -> Tapes:
    return Tapes()


@pytest.fixture
def drained(tapes) -> Tapes:
    """A tape of which what is before 30 ns was handed out."""
    tapes.note((10, A), (20, -A), (30, B), (40, -B), (50, A), (60, -A))
    tapes.recorder.watermark_ns = 29
    tapes.drain()
    assert tapes.kept == [(30, B), (40, -B), (50, A), (60, -A)]
    return tapes


def test_noting_appends_the_time_and_the_code_and_returns_the_time(tapes):
    tapes.clock.now_ns = 7
    assert tapes.pending.note(A) == 7
    assert tapes.kept == [(7, A)]


def test_a_span_is_noted_from_its_begin_until_now(tapes):
    tapes.clock.now_ns = 9
    tapes.pending.note_span(4, A)
    assert tapes.kept == [(4, A), (9, -A)]


def test_it_ends_with_the_last_event_alone(tapes):
    assert not tapes.pending.ends_with(A)
    tapes.note((1, A), (2, -A))
    assert tapes.pending.ends_with(-A)
    assert not tapes.pending.ends_with(A)


def test_taking_back_removes_the_last_event(tapes):
    tapes.note((1, A), (2, -A))
    tapes.pending.take_back()
    assert tapes.kept == [(1, A)]


def test_a_span_of_nothing_is_cancelled_without_a_trace(tapes):
    tapes.note((1, A), (2, B))
    tapes.pending.cancel(B)
    assert tapes.kept == [(1, A)]


def test_a_span_with_something_in_it_is_cancelled_by_its_exit(tapes):
    tapes.note((1, A), (2, B), (3, -B))
    tapes.pending.cancel(A)
    assert tapes.kept == [(1, A), (2, B), (3, -B), (3, -A - DISCARDED)]


def test_an_enter_is_removed(tapes):
    tapes.note((1, A), (2, B), (3, -B))
    tapes.pending.remove(1, A)
    assert tapes.kept == [(2, B), (3, -B)]


def test_of_events_of_one_time_only_the_enter_of_that_code_is_removed(tapes):
    tapes.note((1, A), (1, B), (1, C), (2, -C))
    tapes.pending.remove(1, B)
    assert tapes.kept == [(1, A), (1, C), (2, -C)]


def test_of_enters_alike_the_first_is_removed(tapes):
    tapes.note((1, A), (1, A), (2, B))
    tapes.pending.remove(1, A)
    assert tapes.kept == [(1, A), (2, B)]


def test_the_span_of_an_enter_that_was_handed_out_is_cancelled(drained):
    drained.clock.now_ns = 70
    drained.pending.remove(10, A)
    assert drained.kept[-1] == (70, -A - DISCARDED)
    assert len(drained.kept) == 5


def test_an_event_is_inserted_before_the_first_of_its_time(tapes):
    tapes.note((1, A), (2, -A), (2, B), (3, -B))
    tapes.pending.insert_before(2, (B,), V)
    assert tapes.kept == [(1, A), (2, -A), (2, V), (2, B), (3, -B)]


def test_an_event_is_inserted_before_whichever_of_several_comes_first(tapes):
    tapes.note((2, A), (2, C), (2, B), (3, -B))
    tapes.pending.insert_before(2, (B, C), V)
    assert tapes.kept == [(2, A), (2, V), (2, C), (2, B), (3, -B)]


def test_where_the_event_is_not_an_insertion_keeps_the_order_of_times(tapes):
    tapes.note((1, A), (2, -A), (4, B), (5, -B))
    tapes.pending.insert_before(2, (B,), V)
    tapes.pending.insert_before(3, (B,), C)
    assert tapes.kept == [(1, A), (2, -A), (2, V), (3, C), (4, B), (5, -B)]


def test_an_insertion_before_what_was_handed_out_comes_first(drained):
    drained.pending.insert_before(10, (A,), V)
    assert drained.kept == [(10, V), (30, B), (40, -B), (50, A), (60, -A)]


def test_an_exit_is_inserted_after_all_that_ended_by_then(tapes):
    tapes.note((1, V), (1, A), (2, -A), (5, B), (6, -B))
    tapes.pending.insert_exit(2, V)
    assert tapes.kept == [(1, V), (1, A), (2, -A), (2, -V), (5, B), (6, -B)]


def test_an_exit_is_inserted_before_what_begins_at_that_moment(tapes):
    tapes.note((1, V), (1, A), (2, -A), (2, B), (2, C), (5, -C), (6, -B))
    tapes.pending.insert_exit(2, V)
    assert tapes.kept == [(1, V), (1, A), (2, -A), (2, -V), (2, B), (2, C), (5, -C), (6, -B)]


def test_an_exit_is_never_inserted_before_its_own_enter(tapes):
    tapes.note((1, A), (2, -A), (2, V), (2, B), (3, -B))
    tapes.pending.insert_exit(2, V)
    assert tapes.kept == [(1, A), (2, -A), (2, V), (2, -V), (2, B), (3, -B)]


def test_an_exit_at_the_end_is_the_last_event(tapes):
    tapes.note((1, V), (2, A), (3, -A))
    tapes.pending.insert_exit(3, V)
    tapes.pending.insert_exit(8, V)
    assert tapes.kept == [(1, V), (2, A), (3, -A), (3, -V), (8, -V)]


def test_an_exit_of_before_what_was_handed_out_comes_first(drained):
    drained.pending.insert_exit(25, V)
    assert drained.kept == [(25, -V), (30, B), (40, -B), (50, A), (60, -A)]


def test_an_exit_finds_its_place_in_a_tape_of_nothing(tapes):
    tapes.pending.insert_exit(3, V)
    assert tapes.kept == [(3, -V)]


def test_codes_are_changed_from_a_time_on(tapes):
    tapes.note((1, A), (2, -A), (3, A), (4, B), (5, -B), (6, -A))
    tapes.pending.change(3, {A: C, -A: -C})
    assert tapes.kept == [(1, A), (2, -A), (3, C), (4, B), (5, -B), (6, -C)]


def test_codes_are_changed_from_an_exit_on_whose_enter_keeps_its_own(tapes):
    tapes.note((1, A), (2, -A), (3, A), (4, -A))
    tapes.pending.change(2, {-A: -C})
    assert tapes.kept == [(1, A), (2, -C), (3, A), (4, -C)]


def test_codes_of_what_is_left_are_changed_where_the_time_was_handed_out(drained):
    drained.pending.change(10, {A: C, -A: -C})
    assert drained.kept == [(30, B), (40, -B), (50, C), (60, -C)]
    assert drained.handed_out == [(10, A), (20, -A)]


def test_what_came_since_an_event_is_removed(tapes):
    tapes.note((1, B), (2, -B), (3, A), (4, B), (5, C), (6, -C), (7, -B))
    tapes.pending.remove_since(3, A, {B, -B})
    assert tapes.kept == [(1, B), (2, -B), (3, A), (5, C), (6, -C)]


def test_what_came_since_an_event_at_the_same_moment_is_removed_and_what_came_before_stays(tapes):
    tapes.note((3, B), (3, -B), (3, A), (3, B), (3, -B), (4, A), (5, -A))
    tapes.pending.remove_since(3, A, {A, -A, B, -B})
    assert tapes.kept == [(3, B), (3, -B), (3, A)]


def test_all_that_is_left_is_removed_where_the_event_was_handed_out(drained):
    drained.pending.remove_since(10, A, {A, -A})
    assert drained.kept == [(30, B), (40, -B)]


def test_nothing_later_than_the_hold_is_handed_out(tapes):
    tapes.note((1, A), (2, -A), (3, B))
    tapes.clock.now_ns = NS_PER_DRAIN
    tapes.pending.hold(2)
    tapes.drain()
    assert (tapes.handed_out, tapes.kept) == ([(1, A), (2, -A)], [(3, B)])


def test_a_hold_asks_for_a_drain_once_a_second(tapes):
    asked = []
    tapes.recorder.on_full = lambda: asked.append(tapes.recorder.watermark_ns)
    for tenths in range(31):
        tapes.pending.hold(tenths * NS_PER_DRAIN // 10)
    assert asked == [NS_PER_DRAIN, 2 * NS_PER_DRAIN, 3 * NS_PER_DRAIN]


def test_a_hold_asks_for_a_drain_of_a_full_tape_at_once(tapes):
    asked = []
    tapes.recorder.on_full = lambda: asked.append(True)
    tapes.pending.events.extend([1, A] * (FLUSH_AT_MOST // 2))
    tapes.pending.hold(1)
    assert asked == []
    tapes.pending.note(A)
    tapes.pending.hold(1)
    assert asked == [True]


def test_what_follows_the_end_of_a_step_that_is_still_to_be_marked_is_not_handed_out(tapes):
    tapes.pending.step_end_ns = lambda: 2
    tapes.note((1, A), (2, -A), (3, B))
    tapes.pending.hold(3)
    assert tapes.recorder.watermark_ns == 2
    tapes.pending.step_end_ns = lambda: None
    tapes.pending.hold(3)
    assert tapes.recorder.watermark_ns == 3


def test_a_step_that_is_still_to_be_marked_holds_back_no_more_than_may_be(tapes):
    tapes.pending.step_end_ns = lambda: 2
    tapes.pending.events.extend([3, A] * (MOST_HELD // 2))
    tapes.pending.hold(3)
    assert tapes.recorder.watermark_ns == 2
    tapes.pending.note(A)
    tapes.pending.hold(3)
    assert tapes.recorder.watermark_ns == 3


def test_more_than_may_be_held_back_is_too_long(tapes):
    tapes.pending.events.extend([1, A] * (MOST_HELD // 2))
    assert not tapes.pending.is_too_long()
    tapes.pending.note(A)
    assert tapes.pending.is_too_long()


def test_the_loop_begins_where_it_is_said_to(tapes):
    tapes.recorder.watermark_ns = 5
    assert tapes.pending.begin_loop(8) == 8
    assert tapes.recorder.marks == [(LOOP_BEGIN, 8)]


def test_the_loop_begins_with_what_is_not_handed_out_yet(tapes):
    tapes.recorder.watermark_ns = 5
    assert tapes.pending.begin_loop(3) == 5
    tapes.recorder.watermark_ns = None
    assert tapes.pending.begin_loop(7) == 7


def test_the_loop_begins_no_sooner_than_the_epoch_it_is_in(tapes):
    tapes.clock.now_ns = 6
    tapes.recorder.mark(EPOCH_BEGIN)
    assert tapes.pending.begin_loop(3) == 6
