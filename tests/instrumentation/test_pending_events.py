import pytest

from tests.support.recording import FakeClock
from training_profiler.instrumentation.loop_detection.pending_events import MAX_PENDING, NS_PER_DRAIN, PendingEvents
from training_profiler.recording.event_codes import DISCARDED, EPOCH_BEGIN, LOOP_BEGIN
from training_profiler.recording.recorder import Recorder
from training_profiler.recording.section import FLUSH_AT_MOST

A, B, C, V = 1, 2, 3, 9  # codes; V encloses others


class RecordedEvents:
    """Pending events of a recorder on a clock of ns since 0; drained on request."""

    def __init__(self):
        self.clock = FakeClock(0)
        self.recorder = Recorder(clock=self.clock)
        self.pending = PendingEvents(self.recorder)
        self.drained = []
        self.recorder.on_full = self.drain

    def record(self, *events):
        """Record events given as (ns, code)."""
        for ns, code in events:
            self.clock.now_ns = ns
            self.pending.record(code)

    def drain(self):
        thread_id = self.recorder.thread_id()
        flat = next(thread.events for thread in self.recorder.drain().threads if thread.thread_id == thread_id)
        self.drained += pairs(flat)

    @property
    def kept(self):
        return pairs(self.pending.events)


def pairs(flat):
    return list(zip(flat[::2], flat[1::2], strict=True))


@pytest.fixture
def events() -> RecordedEvents:
    return RecordedEvents()


@pytest.fixture
def drained(events) -> RecordedEvents:
    """Events of which those before 30 ns have been drained."""
    events.record((10, A), (20, -A), (30, B), (40, -B), (50, A), (60, -A))
    events.recorder.watermark_ns = 29
    events.drain()
    assert events.kept == [(30, B), (40, -B), (50, A), (60, -A)]
    return events


def test_record_appends_time_and_code_and_returns_the_time(events):
    events.clock.now_ns = 7
    assert events.pending.record(A) == 7
    assert events.kept == [(7, A)]


def test_ends_with_compares_the_last_event(events):
    assert not events.pending.ends_with(A)
    events.record((1, A), (2, -A))
    assert events.pending.ends_with(-A)
    assert not events.pending.ends_with(A)


def test_remove_last_removes_one_event(events):
    events.record((1, A), (2, -A))
    events.pending.remove_last()
    assert events.kept == [(1, A)]


def test_discarding_an_empty_span_removes_it(events):
    events.record((1, A), (2, B))
    events.pending.discard_span(B)
    assert events.kept == [(1, A)]


def test_discarding_a_span_marks_its_exit(events):
    events.record((1, A), (2, B), (3, -B))
    events.pending.discard_span(A)
    assert events.kept == [(1, A), (2, B), (3, -B), (3, -A - DISCARDED)]


def test_enter_is_removed(events):
    events.record((1, A), (2, B), (3, -B))
    events.pending.remove(1, A)
    assert events.kept == [(2, B), (3, -B)]


def test_remove_matches_time_and_code(events):
    events.record((1, A), (1, B), (1, C), (2, -C))
    events.pending.remove(1, B)
    assert events.kept == [(1, A), (1, C), (2, -C)]


def test_remove_takes_the_first_of_equal_enters(events):
    events.record((1, A), (1, A), (2, B))
    events.pending.remove(1, A)
    assert events.kept == [(1, A), (2, B)]


def test_removing_a_drained_enter_discards_its_span(drained):
    drained.clock.now_ns = 70
    drained.pending.remove(10, A)
    assert drained.kept[-1] == (70, -A - DISCARDED)
    assert len(drained.kept) == 5


def test_insert_before_matches_time_and_code(events):
    events.record((1, A), (2, -A), (2, B), (3, -B))
    events.pending.insert_before(2, (B,), V)
    assert events.kept == [(1, A), (2, -A), (2, V), (2, B), (3, -B)]


def test_insert_before_takes_the_first_of_several_codes(events):
    events.record((2, A), (2, C), (2, B), (3, -B))
    events.pending.insert_before(2, (B, C), V)
    assert events.kept == [(2, A), (2, V), (2, C), (2, B), (3, -B)]


def test_insertion_without_match_keeps_time_order(events):
    events.record((1, A), (2, -A), (4, B), (5, -B))
    events.pending.insert_before(2, (B,), V)
    events.pending.insert_before(3, (B,), C)
    assert events.kept == [(1, A), (2, -A), (2, V), (3, C), (4, B), (5, -B)]


def test_insertion_before_drained_events_comes_first(drained):
    drained.pending.insert_before(10, (A,), V)
    assert drained.kept == [(10, V), (30, B), (40, -B), (50, A), (60, -A)]


def test_exit_is_inserted_after_earlier_exits(events):
    events.record((1, V), (1, A), (2, -A), (5, B), (6, -B))
    events.pending.insert_exit(2, V)
    assert events.kept == [(1, V), (1, A), (2, -A), (2, -V), (5, B), (6, -B)]


def test_exit_is_inserted_before_enters_of_the_same_time(events):
    events.record((1, V), (1, A), (2, -A), (2, B), (2, C), (5, -C), (6, -B))
    events.pending.insert_exit(2, V)
    assert events.kept == [(1, V), (1, A), (2, -A), (2, -V), (2, B), (2, C), (5, -C), (6, -B)]


def test_exit_is_inserted_after_its_own_enter(events):
    events.record((1, A), (2, -A), (2, V), (2, B), (3, -B))
    events.pending.insert_exit(2, V)
    assert events.kept == [(1, A), (2, -A), (2, V), (2, -V), (2, B), (3, -B)]


def test_exit_at_the_end_is_appended(events):
    events.record((1, V), (2, A), (3, -A))
    events.pending.insert_exit(3, V)
    events.pending.insert_exit(8, V)
    assert events.kept == [(1, V), (2, A), (3, -A), (3, -V), (8, -V)]


def test_exit_before_drained_events_comes_first(drained):
    drained.pending.insert_exit(25, V)
    assert drained.kept == [(25, -V), (30, B), (40, -B), (50, A), (60, -A)]


def test_exit_is_inserted_into_empty_events(events):
    events.pending.insert_exit(3, V)
    assert events.kept == [(3, -V)]


def test_recode_changes_codes_since_a_time(events):
    events.record((1, A), (2, -A), (3, A), (4, B), (5, -B), (6, -A))
    events.pending.recode(3, {A: C, -A: -C})
    assert events.kept == [(1, A), (2, -A), (3, C), (4, B), (5, -B), (6, -C)]


def test_recode_since_an_exit_keeps_its_enter(events):
    events.record((1, A), (2, -A), (3, A), (4, -A))
    events.pending.recode(2, {-A: -C})
    assert events.kept == [(1, A), (2, -C), (3, A), (4, -C)]


def test_recode_since_drained_events_changes_the_rest(drained):
    drained.pending.recode(10, {A: C, -A: -C})
    assert drained.kept == [(30, B), (40, -B), (50, C), (60, -C)]
    assert drained.drained == [(10, A), (20, -A)]


def test_remove_since_removes_later_codes(events):
    events.record((1, B), (2, -B), (3, A), (4, B), (5, C), (6, -C), (7, -B))
    events.pending.remove_since(3, A, {B, -B})
    assert events.kept == [(1, B), (2, -B), (3, A), (5, C), (6, -C)]


def test_remove_since_keeps_earlier_events_of_the_same_time(events):
    events.record((3, B), (3, -B), (3, A), (3, B), (3, -B), (4, A), (5, -A))
    events.pending.remove_since(3, A, {A, -A, B, -B})
    assert events.kept == [(3, B), (3, -B), (3, A)]


def test_remove_since_a_drained_event_removes_the_rest(drained):
    drained.pending.remove_since(10, A, {A, -A})
    assert drained.kept == [(30, B), (40, -B)]


def test_events_after_the_watermark_are_not_drained(events):
    events.record((1, A), (2, -A), (3, B))
    events.clock.now_ns = NS_PER_DRAIN
    events.pending.release(2)
    events.drain()
    assert (events.drained, events.kept) == ([(1, A), (2, -A)], [(3, B)])


def test_release_requests_a_drain_once_a_second(events):
    requests = []
    events.recorder.on_full = lambda: requests.append(events.recorder.watermark_ns)
    for tenths in range(31):
        events.pending.release(tenths * NS_PER_DRAIN // 10)
    assert requests == [NS_PER_DRAIN, 2 * NS_PER_DRAIN, 3 * NS_PER_DRAIN]


def test_release_requests_a_drain_of_full_events_at_once(events):
    requests = []
    events.recorder.on_full = lambda: requests.append(True)
    events.pending.events.extend([1, A] * (FLUSH_AT_MOST // 2))
    events.pending.release(1)
    assert requests == []
    events.pending.record(A)
    events.pending.release(1)
    assert requests == [True]


def test_events_after_a_pending_step_end_are_not_released(events):
    events.pending.step_end_ns = lambda: 2
    events.record((1, A), (2, -A), (3, B))
    events.pending.release(3)
    assert events.recorder.watermark_ns == 2
    events.pending.step_end_ns = lambda: None
    events.pending.release(3)
    assert events.recorder.watermark_ns == 3


def test_pending_step_end_is_ignored_when_full(events):
    events.pending.step_end_ns = lambda: 2
    events.pending.events.extend([3, A] * (MAX_PENDING // 2))
    events.pending.release(3)
    assert events.recorder.watermark_ns == 2
    events.pending.record(A)
    events.pending.release(3)
    assert events.recorder.watermark_ns == 3


def test_is_full_beyond_the_limit(events):
    events.pending.events.extend([1, A] * (MAX_PENDING // 2))
    assert not events.pending.is_full()
    events.pending.record(A)
    assert events.pending.is_full()


def test_loop_begins_at_the_given_time(events):
    events.recorder.watermark_ns = 5
    assert events.pending.begin_loop(8) == 8
    assert events.recorder.marks == [8, LOOP_BEGIN]


def test_loop_begins_at_the_watermark_at_the_earliest(events):
    events.recorder.watermark_ns = 5
    assert events.pending.begin_loop(3) == 5
    events.recorder.watermark_ns = None
    assert events.pending.begin_loop(7) == 7


def test_loop_begins_within_its_epoch(events):
    events.clock.now_ns = 6
    events.recorder.mark(EPOCH_BEGIN)
    assert events.pending.begin_loop(3) == 6


def test_nested_spans_right_before_a_moment_have_a_begin(events):
    events.record((10, A), (12, -A), (20, A), (21, B), (29, -B), (30, -A), (35, C))
    assert events.pending.with_spans_before(35, C, (A, B)) == 20


@pytest.mark.parametrize("following", [[], [(30, C)]])
def test_a_coarse_clock_changes_nothing(events, following):
    events.record((20, A), (20, B), (30, -B), (30, -A), *following)
    assert events.pending.with_spans_before(30, C, (A, B)) == 20


@pytest.mark.parametrize(
    "recorded",
    [
        pytest.param([(20, A), (30, -A)], id="the outer one alone"),
        pytest.param([(20, A), (21, B), (29, -B), (30, -A), (31, V), (32, -V)], id="others followed"),
        pytest.param([(20, B), (30, -B)], id="the inner one alone"),
        pytest.param([(21, -B), (30, -A)], id="the begin was handed out"),
        pytest.param([], id="nothing"),
    ],
)
def test_without_these_spans_the_moment_itself_counts(events, recorded):
    events.record(*recorded, (35, C))
    assert events.pending.with_spans_before(35, C, (A, B)) == 35
