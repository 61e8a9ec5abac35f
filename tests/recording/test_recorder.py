import gc
import sys
import threading
import weakref

import pytest

from tests.support.recording import FakeClock
from training_profiler.recording.event_codes import STEP_END
from training_profiler.recording.recorder import Recorder
from training_profiler.recording.section import FLUSH_AT_MOST, ThreadBuffer


def events_of(recorder: Recorder) -> list[tuple[int, int]]:
    """Drain the calling thread's events and return them as (time, code)."""
    thread_id = recorder.thread_id()
    flat = next(thread.events for thread in recorder.drain().threads if thread.thread_id == thread_id)
    return list(zip(flat[::2], flat[1::2], strict=True))


def test_a_span_is_an_enter_and_an_exit_with_their_times_also_where_it_raises(recorder, clock):
    @recorder.section("forward_pass")
    def fail():
        clock.advance_ns(3)
        raise KeyError

    with recorder.section("forward_pass"):
        clock.advance_ns(7)
    with pytest.raises(KeyError):
        fail()
    assert events_of(recorder) == [(1000, 1), (1007, -1), (1007, 1), (1010, -1)]


def test_ended_thread_is_drained_once_more_and_removed(recorder):
    def work():
        with recorder.section("a"):
            pass

    thread = threading.Thread(target=work, name="loader")
    thread.start()
    thread.join()
    del thread
    gc.collect()
    assert [(thread.name, thread.is_alive, list(thread.events[1::2])) for thread in recorder.drain().threads] == [
        ("MainThread", True, []),
        ("loader", False, [1, -1]),
    ]
    assert [thread.is_alive for thread in recorder.drain().threads] == [True]


def test_full_buffer_requests_a_drain_and_is_emptied_without_a_session(recorder):
    asked = []
    for on_full in (recorder.on_full, lambda: asked.append(len(recorder.buffers[0].events))):
        recorder.on_full = on_full
        assert not asked
        for _ in range(2 * FLUSH_AT_MOST):
            with recorder.section("a"):
                pass
    assert 0 < asked[0] < 2 * FLUSH_AT_MOST


def test_busy_thread_is_drained_about_every_two_seconds(recorder, clock):
    recorder.on_full = lambda: None
    for _ in range(100):
        with recorder.section("a"):
            clock.advance_ns(1)
    clock.advance_ns(500_000_000 - 100)
    recorder.drain()  # 400 integers in half a second
    assert recorder.buffers[0].flush_at == 1600


def test_entering_a_section_starts_the_session_creating_it_does_not(recorder):
    begun = []

    def begin():
        begun.append("begun")
        recorder.has_session = True

    recorder.has_session = False
    with recorder.section("a"):
        pass
    assert events_of(recorder) == []
    recorder.on_first_section = begin
    section = recorder.section("a")
    decorated = recorder.section("b")(lambda: 1)
    assert begun == []
    with section:
        pass
    assert (begun, decorated()) == (["begun"], 1)
    assert [code for _, code in events_of(recorder)] == [1, -1, 2, -2]


def test_later_events_are_left_for_the_next_drain(recorder, clock):
    alive = threading.Event()
    other = ThreadBuffer("other", weakref.ref(alive), recorder.implementation)
    other.events.extend((900, 1, 1001, -1))  # the clock stands at 1000, so the last event comes later
    recorder.buffers.append(other)

    def other_events(batch):
        return next(list(thread.events) for thread in batch.threads if thread.name == "other")

    recorder.marks.extend([950, STEP_END, 1002, STEP_END])
    batch = recorder.drain()
    assert (other_events(batch), list(batch.marks)) == ([900, 1], [950, STEP_END])
    clock.advance_ns(10)
    batch = recorder.drain()
    assert (other_events(batch), list(batch.marks)) == ([1001, -1], [1002, STEP_END])


@pytest.mark.parametrize("name", [None, 3, "", "  ", ["a"], {}])
def test_invalid_name_is_recorded_as_such(recorder, name):
    with recorder.section(name):
        pass
    assert [recorder.names.names[abs(code)] for _, code in events_of(recorder)] == ["(invalid name)"] * 2


def test_decorator_without_name_raises_with_example(recorder):
    with pytest.raises(TypeError, match=r'given the function \'train\' and no name; .*@profile_section\("train"\)'):

        @recorder.section
        def train():
            pass


NAMED_LIKE_OURS = ["other", "(profiler)", "first_fetch", "(other names)", "(invalid name)", "user:other"]


def entered(recorder):
    """Return the keys of the sections that were entered since the last drain."""
    return [recorder.names.names[code] for _, code in events_of(recorder) if code > 0]


@pytest.mark.parametrize("name", NAMED_LIKE_OURS)
def test_a_users_section_and_one_of_ours_with_the_same_name_are_recorded_apart(recorder, name):
    @recorder.section(name)
    def work():
        with recorder.section(name), recorder.own_section(name):
            pass

    for _ in range(2):  # the second time, the section is found without its name being looked at
        work()
    assert entered(recorder) == [f"user:{name}", f"user:{name}", name] * 2


def test_a_function_whose_name_is_beyond_the_limit_is_counted_with_all_others(recorder):
    recorder.names.limit = 1
    for name in ("a", "b", "c"):
        recorder.section(name)(lambda: None)()
    assert entered(recorder) == ["a", "(other names)", "(other names)"]


def test_a_section_before_the_run_begins_has_the_same_key_in_it(recorder):
    recorder.wait_for_first_section(lambda: recorder.listen(lambda: None))
    with recorder.section("other"):
        pass
    assert entered(recorder) == ["user:other"]


def test_a_section_of_ours_has_the_recorders_clock_whatever_the_clock_of_the_thread(recorder, clock):
    recorder.use_clock(recorder.buffer(), lambda: clock() + 1)
    with recorder.section("a"), recorder.own_section("(profiler)"):
        pass
    assert [at_ns - clock() for at_ns, _ in events_of(recorder)] == [1, 0, 0, 1]


def test_sections_ask_dynamo_only_while_it_may_trace(clock, monkeypatch, implementation):
    class Torch:
        class compiler:
            asked = 0

            @classmethod
            def is_dynamo_compiling(cls):
                cls.asked += 1
                return True

    monkeypatch.setitem(sys.modules, "torch", Torch)
    recorder = Recorder(clock=clock, implementation=implementation)
    recorder.ask_dynamo(False)
    with recorder.section("a"):
        pass
    assert (len(events_of(recorder)), Torch.compiler.asked) == (2, 0)
    recorder.ask_dynamo(True)
    with recorder.section("a"):
        pass
    assert (len(events_of(recorder)), Torch.compiler.asked) == (0, 1)


def test_torch_imported_later_is_found(monkeypatch, implementation):
    class Compiler:
        tracing = False

        @classmethod
        def is_compiling(cls):
            return cls.tracing

    class Torch:
        compiler = Compiler

    monkeypatch.delitem(sys.modules, "torch", raising=False)
    recorder = Recorder(clock=FakeClock(), implementation=implementation)
    with recorder.section("a"):
        pass
    monkeypatch.setitem(sys.modules, "torch", Torch)
    with recorder.section("a"):
        pass
    Compiler.tracing = True
    with recorder.section("a"):
        pass
    assert len(events_of(recorder)) == 4


def test_a_child_forked_during_a_drain_can_rewrite_and_drain(recorder):
    with recorder.section("forward_pass"):
        pass
    held, done = threading.Event(), threading.Event()

    def drain_slowly():
        with recorder.buffers[0].rewrite_lock:
            held.set()
            done.wait()

    thread = threading.Thread(target=drain_slowly)  # the child does not have it
    thread.start()
    held.wait()
    recorder.after_fork_in_child()
    assert [each.events for each in recorder.drain().threads if each.events]
    done.set()
    thread.join()
