import re

import pytest

from tests.support.recording import FakeClock
from training_profiler.instrumentation.loop_detection.pending_events import MAX_PENDING, NS_PER_DRAIN, PendingEvents
from training_profiler.recording.event_codes import DISCARDED, EPOCH_BEGIN, LOOP_BEGIN
from training_profiler.recording.recorder import Recorder
from training_profiler.recording.section import FLUSH_AT_MOST

A, B, C, V = 1, 2, 3, 9  # codes; V encloses others; "x" after an exit: it is discarded
CODES = {"A": A, "B": B, "C": C, "V": V}


class RecordedEvents:
    """Pending events of a recorder on a clock of ns since 0; drained on request."""

    def __init__(self):
        self.clock = FakeClock(0)
        self.recorder = Recorder(clock=self.clock)
        self.pending = PendingEvents(self.recorder)
        self.drained = []
        self.recorder.on_full = self.drain

    def record(self, text):
        """Record events given as "1A 2-A"."""
        for ns, code in parsed(text):
            self.clock.now_ns = ns
            assert self.pending.record(code) == ns

    def drain(self):
        thread_id = self.recorder.thread_id()
        flat = next(thread.events for thread in self.recorder.drain().threads if thread.thread_id == thread_id)
        self.drained += pairs(flat)

    @property
    def kept(self):
        return pairs(self.pending.events)


def parsed(text):
    """Return (ns, code) of each event in a text such as "1A 2-A"."""
    found = (re.fullmatch(r"(\d+)(-?)([ABCV])(x?)", word).groups() for word in text.split())
    return [(int(ns), (-1 if minus else 1) * CODES[letter] - DISCARDED * bool(x)) for ns, minus, letter, x in found]


def pairs(flat):
    return list(zip(flat[::2], flat[1::2], strict=True))


@pytest.fixture
def events() -> RecordedEvents:
    return RecordedEvents()


DRAINED = "10A 20-A | 30B 40-B 50A 60-A"  # what is before the bar has been drained


@pytest.mark.parametrize(
    ("recorded", "call", "arguments", "kept"),
    [
        ("1A 2-A", "remove_last", (-A,), "1A"),
        ("1A 2-A", "remove_last", (A,), "1A 2-A"),
        ("1A 2B", "discard_span", (B,), "1A"),
        ("1A 2B 3-B", "discard_span", (A,), "1A 2B 3-B 3-Ax"),
        ("1A 2B 3-B", "remove", (1, A), "2B 3-B"),
        ("1A 1B 1C 2-C", "remove", (1, B), "1A 1C 2-C"),
        ("1A 1A 2B", "remove", (1, A), "1A 2B"),
        (DRAINED, "remove", (10, A), "30B 40-B 50A 60-A 60-Ax"),
        ("1A 2-A 2B 3-B", "insert_before", (2, (B,), V), "1A 2-A 2V 2B 3-B"),
        ("2A 2C 2B 3-B", "insert_before", (2, (B, C), V), "2A 2V 2C 2B 3-B"),
        ("1A 2-A 4B 5-B", "insert_before", (2, (B,), V), "1A 2-A 2V 4B 5-B"),
        ("1A 2-A 4B 5-B", "insert_before", (3, (B,), C), "1A 2-A 3C 4B 5-B"),
        (DRAINED, "insert_before", (10, (A,), V), "10V 30B 40-B 50A 60-A"),
        ("1V 1A 2-A 5B 6-B", "insert_exit", (2, V), "1V 1A 2-A 2-V 5B 6-B"),
        ("1V 1A 2-A 2B 2C 5-C 6-B", "insert_exit", (2, V), "1V 1A 2-A 2-V 2B 2C 5-C 6-B"),
        ("1A 2-A 2V 2B 3-B", "insert_exit", (2, V), "1A 2-A 2V 2-V 2B 3-B"),
        ("1V 2A 3-A", "insert_exit", (3, V), "1V 2A 3-A 3-V"),
        ("1V 2A 3-A", "insert_exit", (8, V), "1V 2A 3-A 8-V"),
        (DRAINED, "insert_exit", (25, V), "25-V 30B 40-B 50A 60-A"),
        ("", "insert_exit", (3, V), "3-V"),
        ("1A 2-A 3A 4B 5-B 6-A", "recode", (3, {A: C, -A: -C}), "1A 2-A 3C 4B 5-B 6-C"),
        ("1A 2-A 3A 4-A", "recode", (2, {-A: -C}), "1A 2-C 3A 4-C"),
        (DRAINED, "recode", (10, {A: C, -A: -C}), "30B 40-B 50C 60-C"),
        ("1B 2-B 3A 4B 5C 6-C 7-B", "remove_since", (3, A, {B, -B}), "1B 2-B 3A 5C 6-C"),
        ("3B 3-B 3A 3B 3-B 4A 5-A", "remove_since", (3, A, {A, -A, B, -B}), "3B 3-B 3A"),
        (DRAINED, "remove_since", (10, A, {A, -A}), "30B 40-B"),
    ],
)
def test_pending_events_are_rewritten(events, recorded, call, arguments, kept):
    drained, bar, rest = recorded.rpartition("|")
    events.record(drained + rest)
    if bar:
        events.recorder.watermark_ns = parsed(drained)[-1][0]
        events.drain()
    getattr(events.pending, call)(*arguments)
    assert (events.drained, events.kept) == (parsed(drained), parsed(kept))


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


def test_pending_step_end_is_ignored_when_full(events):
    events.pending.step_end_ns = lambda: 2
    events.pending.events.extend([3, A] * (MAX_PENDING // 2))
    events.pending.release(3)
    assert events.recorder.watermark_ns == 2
    events.pending.record(A)
    events.pending.release(3)
    assert events.recorder.watermark_ns == 3


def test_loop_begins_at_the_watermark_at_the_earliest(events):
    events.recorder.watermark_ns = 5
    assert events.pending.begin_loop(3) == 5
    assert events.recorder.marks == [5, LOOP_BEGIN]
    events.recorder.watermark_ns = None
    assert events.pending.begin_loop(7) == 7


def test_loop_begins_within_its_epoch(events):
    events.clock.now_ns = 6
    events.recorder.mark(EPOCH_BEGIN)
    assert events.pending.begin_loop(3) == 6


@pytest.mark.parametrize(
    ("recorded", "begin_ns"),
    [
        ("10A 12-A 20A 21B 29-B 30-A 35C", 20),
        ("20A 20B 35-B 35-A", 20),  # a coarse clock
        ("20A 20B 35-B 35-A 35C", 20),
        ("20A 30-A 35C", 35),  # the outer one alone
        ("20A 21B 29-B 30-A 31V 32-V 35C", 35),  # others followed
        ("20B 30-B 35C", 35),  # the inner one alone
        ("21-B 30-A 35C", 35),  # the begin was handed out
        ("35C", 35),
    ],
)
def test_nested_spans_right_before_a_moment_have_a_begin(events, recorded, begin_ns):
    events.record(recorded)
    assert events.pending.with_spans_before(35, C, (A, B)) == begin_ns
