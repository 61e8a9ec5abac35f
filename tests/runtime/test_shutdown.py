import faulthandler
import os
import signal
import threading
from functools import partial

import pytest

from tests.support.greenlets import replace_threads
from training_profiler.runtime import shutdown as shutdown_module
from training_profiler.runtime.shutdown import Shutdown, held_handler_errors
from training_profiler.safety import files as descriptors


@pytest.fixture
def shutdown():
    shutdown = Shutdown(lambda ended_by: True)
    shutdown.install()
    yield shutdown
    shutdown.remove()


def wakeup_descriptor():
    descriptor = signal.set_wakeup_fd(-1)
    if descriptor != -1:
        signal.set_wakeup_fd(descriptor)
    return descriptor


@pytest.fixture
def of_program():
    """Return a descriptor for signals that is the program's."""
    reads, writes = os.pipe()
    os.set_blocking(writes, False)
    yield writes
    signal.set_wakeup_fd(-1)
    os.close(reads)
    os.close(writes)


def watchers():
    return [thread for thread in threading.enumerate() if thread.name == "training_profiler SIGTERM"]


def test_descriptors_are_far_from_those_of_the_program(shutdown):
    shutdown.end_where_stuck()
    assert wakeup_descriptor() >= descriptors.LOWEST
    assert all(descriptor >= descriptors.LOWEST for descriptor in (each.number for each in shutdown._pipe))


@pytest.mark.parametrize(
    "change",
    [
        lambda patch: patch.setattr(descriptors, "LOWEST", 10**9),  # the limit of descriptors is lower
        lambda patch: replace_threads(patch, "gevent.thread"),  # a greenlet would wait on the training's thread
    ],
)
def test_no_thread_waits_for_signals_where_it_would_disturb(shutdown, monkeypatch, change):
    change(monkeypatch)
    shutdown.end_where_stuck()
    assert (watchers(), wakeup_descriptor()) == ([], -1)


def test_stuck_program_whose_threads_are_greenlets_ends_without_a_summary(shutdown, monkeypatch):
    replace_threads(monkeypatch, "gevent.thread")
    shutdown._finish_beside()
    assert shutdown._has_finished.is_set()


def test_wakeup_descriptor_rests_during_a_fork_unless_it_is_the_programs(shutdown, of_program):
    shutdown.end_where_stuck()
    for descriptor, during in ((shutdown._pipe[1].number, -1), (of_program, of_program)):
        signal.set_wakeup_fd(descriptor)
        shutdown._pause()
        assert wakeup_descriptor() == during
        shutdown._resume()
        assert wakeup_descriptor() == descriptor


def test_handler_in_c_is_not_replaced():
    faulthandler.register(signal.SIGTERM)
    try:
        assert not shutdown_module._has_default_action(signal.SIGTERM)
    finally:
        faulthandler.unregister(signal.SIGTERM)
    assert shutdown_module._has_default_action(signal.SIGTERM)


def test_ctrl_c_at_the_end_is_silent():
    def interrupted(ended_by):
        raise KeyboardInterrupt

    Shutdown(interrupted)._at_exit()


def test_wakeup_descriptor_of_another_library_stays(shutdown, of_program):
    signal.set_wakeup_fd(of_program)
    shutdown.end_where_stuck()
    assert (watchers(), wakeup_descriptor()) == ([], of_program)


@pytest.mark.parametrize(
    ("places", "is_taken", "is_stuck"),
    [
        ([(1, 2)] * 21, False, True),
        ([(1, 2)] * 20 + [(1, 4)], False, False),  # it moves: the signal was a child's
        ([(1, 2)] * 21, True, False),
    ],
)
def test_main_thread_without_progress_and_signal_is_stuck(shutdown, monkeypatch, places, is_taken, is_stuck):
    following = iter(places)
    monkeypatch.setattr(shutdown_module.time, "sleep", lambda seconds: None)
    monkeypatch.setattr(shutdown_module, "_place_of_main_thread", lambda: next(following))
    shutdown._is_handled = is_taken
    assert shutdown._is_stuck() is is_stuck


def test_signal_handled_by_the_program_is_not_handled(shutdown, monkeypatch):
    monkeypatch.setattr(shutdown_module.time, "sleep", lambda seconds: None)
    monkeypatch.setattr(shutdown_module, "_place_of_main_thread", lambda: (1, 2))
    before = signal.signal(signal.SIGTERM, lambda signum, frame: None)
    assert not shutdown._is_stuck()
    signal.signal(signal.SIGTERM, before)
    assert shutdown._is_stuck()


def test_error_of_a_signal_handler_at_the_exit_does_not_lose_the_end():
    calls = []

    def finish(ended_by):
        calls.append(ended_by)
        if len(calls) == 1:
            signal.raise_signal(signal.SIGUSR1)  # whose handler fails
        return True

    Shutdown(finish)._at_exit()
    assert len(calls) == 2


def test_what_a_handler_of_the_program_raises_does_not_outlive_sigterm(monkeypatch):
    """A group of processes gets SIGTERM: workers die of it, and torch's handler raises in the training meanwhile."""

    def finish(ended_by):
        raise RuntimeError("DataLoader worker (pid 7) is killed by signal: Terminated.")

    shutdown, ended = Shutdown(finish), []
    monkeypatch.setattr(shutdown, "exit_by_sigterm", lambda: ended.append(True))
    shutdown._at_sigterm(signal.SIGTERM, None)
    assert ended == [True]


def test_an_interrupted_end_of_the_session_is_left_to_finish(monkeypatch):
    shutdown = Shutdown(lambda ended_by: False)
    monkeypatch.setattr(shutdown, "exit_by_sigterm", lambda: pytest.fail("the interrupted work ends the process"))
    shutdown._at_sigterm(signal.SIGTERM, None)


class Planted(Exception):
    pass


def fail(number, frame):
    raise Planted(number)


@pytest.fixture(autouse=True)
def handlers():
    before = {number: signal.signal(number, fail) for number in (signal.SIGUSR1, signal.SIGHUP)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def test_work_goes_on_and_the_error_is_kept():
    with held_handler_errors() as held:
        signal.raise_signal(signal.SIGUSR1)
        signal.raise_signal(signal.SIGUSR1)
        assert [str(error) for error in held] == [str(int(signal.SIGUSR1))] * 2
    assert signal.getsignal(signal.SIGUSR1) is fail


def leave(number, frame):
    raise SystemExit(3)


@pytest.mark.parametrize(
    ("number", "handler", "error"), [(signal.SIGHUP, fail, Planted), (signal.SIGUSR1, leave, SystemExit)]
)
def test_handler_that_asks_the_process_to_end_raises_at_once(number, handler, error):
    signal.signal(number, handler)
    with pytest.raises(error), held_handler_errors():
        signal.raise_signal(number)
    assert signal.getsignal(number) is handler


def test_handler_that_was_installed_meanwhile_stays():
    later = partial(fail)
    with held_handler_errors():
        signal.signal(signal.SIGUSR1, later)
    assert signal.getsignal(signal.SIGUSR1) is later


def test_other_threads_leave_handlers_alone():
    seen = []

    def work():
        with held_handler_errors():
            seen.append(signal.getsignal(signal.SIGUSR1))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [fail]
