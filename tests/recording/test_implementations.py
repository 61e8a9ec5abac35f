"""The recorder in C records what the one in Python does, at the same moments, and owns its memory as it should."""

import gc
import itertools
import os
import sys
import threading
import traceback
import weakref
from contextlib import suppress

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.recording import FakeClock, implementation_of
from training_profiler import recording
from training_profiler.recording import implementation as implementations
from training_profiler.recording.implementation import best_implementation, native_implementation
from training_profiler.recording.recorder import Recorder
from training_profiler.recording.section import FLUSH_AT_LEAST

NAMES = ("a", "b", "c")
INTEGERS = st.integers(-(2**63), 2**63 - 1)
INDICES = st.none() | st.integers(-12, 12)


@pytest.fixture(scope="module")
def native():
    return implementation_of("C")


class Rehearsal:
    """A recorder that follows a script, and everything that can be observed of it."""

    def __init__(self, implementation):
        self.clock = FakeClock()
        self.recorder = Recorder(clock=self.clock, implementation=implementation)
        self.seen = []
        self.recorder.listen(self.drain)

    def drain(self):
        self.seen.append([list(thread.events) for thread in self.recorder.drain().threads])

    def follow(self, acts):
        """Follow a list of acts, in which a list is what happens inside of a section."""
        for act, name, inside in acts:
            section = self.recorder.section(name)
            self.clock.advance_ns(1 + len(inside))
            if act == "with":
                with section:
                    self.follow(inside)
            elif act == "raise":
                with suppress(KeyError), section:
                    self.follow(inside)
                    raise KeyError
            elif act == "many":
                for _ in range(300):
                    with section:
                        self.clock.advance_ns(1)
            elif act == "discard":
                section.__enter__()
                section.discard()
            elif act == "leave":
                section.__exit__()
            elif act == "clock":  # that of an accelerator, which comes into use later
                self.recorder.use_clock(self.recorder.buffer(), lambda: self.clock() + 1)
            elif act == "function":
                section(lambda inside: self.follow(inside))(inside)
            elif act == "generator":
                self.consume(section, inside)
            elif act == "thread":
                thread = threading.Thread(target=self.follow, args=(inside,))
                thread.start()
                thread.join()
            elif act == "drain":
                self.drain()
            elif act == "trim":
                self.recorder.buffer().flush_at = 1024

    def consume(self, section, inside):
        @section
        def generator():
            for act in inside:
                self.follow([act])
                yield

        for _ in generator():
            self.clock.advance_ns(3)

    def outcome(self):
        """Return all that was handed out."""
        self.drain()
        return self.seen, self.recorder.names.names


def acts():
    kinds = ("with", "raise", "many", "discard", "leave", "clock", "function", "generator", "thread", "drain", "trim")
    return st.recursive(
        st.just([]),
        lambda inside: st.lists(st.tuples(st.sampled_from(kinds), st.sampled_from(NAMES), inside), max_size=5),
        max_leaves=12,
    )


@given(acts())
def test_both_hand_out_the_same_at_the_same_moments(native, script):
    found = []
    for implementation in (implementation_of("Python"), native):
        rehearsal = Rehearsal(implementation)
        rehearsal.follow(script)
        found.append(rehearsal.outcome())
    assert found[0] == found[1]


def test_both_compare_the_length_of_a_buffer_equally_often(implementation, clock):
    class Buffer:
        events, asked = implementation.new_events(), 0

        @property
        def flush_at(self):
            Buffer.asked += 1
            return 100_000

    _, leave, _ = implementation.section_writers(1, Buffer(), clock, lambda: None)
    asked_at = [Buffer.asked for _ in range(200) if leave() is None]
    changes = [at for at, (before, now) in enumerate(itertools.pairwise(asked_at)) if before != now]
    assert changes == [62, 126, 190]


def slices():
    return st.builds(slice, INDICES, INDICES, st.none() | st.just(1))


@given(
    st.lists(INTEGERS, max_size=12),
    st.lists(
        st.tuples(st.just("extend"), st.lists(INTEGERS, max_size=12))
        | st.tuples(st.just("replace"), slices(), st.lists(INTEGERS, max_size=12))
        | st.tuples(st.just("delete"), slices())
        | st.tuples(st.just("get"), st.integers(-14, 14))
        | st.tuples(st.just("slice"), st.builds(slice, INDICES, INDICES, st.none() | st.sampled_from([1, 2, -1, -3]))),
        max_size=12,
    ),
)
def test_events_are_a_list_of_integers(native, begin, changes):
    events, oracle = native.new_events(), []
    for each in (events, oracle):
        each.extend(begin)
    for change in changes:
        assert changed(events, *change) == changed(oracle, *change)
        assert (list(events) == oracle, len(events), bool(events)) == (True, len(oracle), bool(oracle))


def changed(events, what, *arguments):
    """Change ``events``; return what comes back, or the kind of the error."""
    try:
        if what == "extend":
            events.extend(tuple(arguments[0]))
        elif what == "replace":
            events[arguments[0]] = arguments[1]
        elif what == "delete":
            del events[arguments[0]]
        else:
            found = events[arguments[0]]
            return found if isinstance(found, int) else list(found)
    except Exception as error:
        return type(error)


@pytest.mark.parametrize("wrong", [(1, "a"), (1, 2**63), 3, None, (None,)])
def test_anything_else_than_integers_is_refused_and_nothing_changes(native, wrong):
    events = native.new_events()
    events.extend((1, 2))
    with pytest.raises((TypeError, OverflowError)):
        events.extend(wrong)
    with pytest.raises((TypeError, OverflowError)):
        events[0:1] = wrong
    assert list(events) == [1, 2]


def test_events_that_shrink_while_they_are_assigned_stay_whole(native):
    events = native.new_events()
    events.extend(range(10))

    def values():
        del events[2:]
        yield from (7, 8, 9)

    events[4:8] = values()
    assert list(events) == [0, 1, 7, 8, 9]


def test_numpy_reads_a_slice_in_place_and_nothing_changes_it(native):
    events = native.new_events()
    events.extend(range(100))
    handed_out = events[:50]
    first, second = (np.frombuffer(handed_out, np.int64) for _ in range(2))
    del events[:50]
    events.extend(range(10_000))
    assert np.shares_memory(first, second)
    assert (first.tolist(), first.flags.writeable) == (list(range(50)), False)
    del handed_out, second
    gc.collect()
    assert first.tolist() == list(range(50))


def test_events_under_way_lend_no_memory_and_a_slice_does_not_change(native):
    events = native.new_events()
    events.extend((1, 2))
    with pytest.raises(BufferError):
        memoryview(events)
    with pytest.raises(TypeError):
        events[:].extend((3, 4))
    with pytest.raises(TypeError):
        del events[:][0:2]
    with pytest.raises(TypeError, match="by a slice"):
        events[0] = 3
    assert (list(events), np.frombuffer(events[2:], np.int64).tolist()) == ([1, 2], [])


def test_what_a_flush_raises_has_no_frame_of_ours(implementation, clock):
    recorder = Recorder(clock=clock, implementation=implementation)

    def interrupt():
        raise KeyboardInterrupt

    recorder.on_full = interrupt

    def work():
        for _ in range(FLUSH_AT_LEAST):
            with recorder.section("a"):
                pass

    with pytest.raises(KeyboardInterrupt) as raised:
        work()
    files = {os.path.dirname(frame.filename) for frame in traceback.extract_tb(raised.value.__traceback__)}
    assert files == {os.path.dirname(__file__)}
    assert len(recorder.drain().threads[0].events) > FLUSH_AT_LEAST  # the exit was recorded before


def test_an_error_of_the_clock_is_raised_and_leaves_no_half_an_event(implementation):
    times = iter([0, 1, 2])
    recorder = Recorder(clock=lambda: next(times), implementation=implementation)
    section = recorder.section("a")
    section.__enter__()
    section.__exit__()
    with pytest.raises((StopIteration, RuntimeError)):
        section.__enter__()
    assert list(recorder.buffer().events) == [1, 1, 2, -1]


def test_exit_takes_an_exception_and_no_more(implementation):
    recorder = Recorder(implementation=implementation)
    with recorder.section("a"):
        pass
    with pytest.raises(TypeError):
        recorder.section("a").__exit__(None, None, None, None)


def test_real_clocks_agree(native):
    recorder = Recorder(implementation=native)
    begin_ns = recorder.clock()
    with recorder.section("a"):
        pass
    enter_ns, _, exit_ns, _ = recorder.buffer().events
    assert begin_ns <= enter_ns <= exit_ns <= recorder.clock()


def test_a_dropped_recorder_leaves_nothing(implementation, clock):
    recorder = Recorder(clock=clock, implementation=implementation)
    with recorder.section("a"):
        pass
    section = recorder.section("a")
    left = [weakref.ref(recorder), weakref.ref(recorder.section)]
    del recorder, section
    gc.collect()
    assert [reference() for reference in left] == [None, None]


def test_memory_does_not_grow(implementation, clock):
    recorder = Recorder(clock=clock, implementation=implementation)

    def work():
        for name in [*NAMES, "not a name of its own" * 2, 3, ""] * 50:
            with recorder.section(name):
                recorder.section("b").discard()
            recorder.time_only_section("a").__enter__()
        recorder.use_clock(recorder.buffer(), None)
        recorder.drain()
        for thread in [threading.Thread(target=recorder.section("c")(lambda: None)) for _ in range(3)]:
            thread.start()
            thread.join()
        recorder.drain()

    def blocks():
        work()
        gc.collect()
        return sys.getallocatedblocks()

    before = [blocks() for _ in range(3)][-1]
    assert blocks() - before < 50


def test_reference_counts_stay(native):
    marker, codes = object(), (1, -1, -9)
    events = native.new_events()
    events.extend((1, 2))
    before = [sys.getrefcount(each) for each in (marker, codes, None, events)]
    for _ in range(1000):
        events.extend((1, 2))
        with pytest.raises(TypeError):
            events.extend((1, marker))
        del events[2:]
        assert events[0] + events[:][1] == 3
    after = [sys.getrefcount(each) for each in (marker, codes, None, events)]
    assert [abs(new - old) < 100 for old, new in zip(before, after, strict=True)] == [True] * 4


def test_threads_lose_nothing_while_others_drain(implementation):
    recorder = Recorder(implementation=implementation)
    handed_out, lock, spans = [0] * 2, threading.Lock(), 6000

    def drain():
        with lock:
            for thread in recorder.drain().threads:
                for at, code in enumerate((1, -1)):
                    handed_out[at] += sum(1 for each in thread.events[1::2] if each == code)

    def work():
        for _ in range(spans):
            with recorder.section("a"):
                pass

    recorder.listen(drain)
    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        drain()
    drain()
    assert handed_out == [4 * spans] * 2


def test_a_thread_finds_its_own_sections_after_others_have_ended(implementation, clock):
    recorder = Recorder(clock=clock, implementation=implementation)
    own, found = recorder.section("a"), []
    for _ in range(3):
        thread = threading.Thread(target=lambda: found.append(recorder.section("a")))
        thread.start()
        thread.join()
        recorder.drain()
        assert recorder.section("a") is own
    assert len({id(section) for section in [own, *found]}) == 4
    assert len(recorder.buffers) == 1


def test_without_the_recorder_in_c_python_serves_and_says_why(monkeypatch):
    monkeypatch.delitem(sys.modules, "training_profiler.recording._native", raising=False)
    monkeypatch.setattr(recording, "__path__", [])
    found = best_implementation()
    assert found.name == "Python"
    assert found.reason == "the recorder in C was not built: no compiler, or no headers of Python"


def test_a_recorder_built_from_other_sources_is_not_used(native, monkeypatch):
    monkeypatch.setattr(implementations, "_INTERFACE", -1)
    with pytest.raises(ImportError, match="install the package again"):
        native_implementation()
    assert best_implementation().describe().startswith("Python (the recorder in C cannot be loaded: it was built from")
