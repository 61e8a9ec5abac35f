import os
import signal
import sys
import threading

import pytest

from tests.support.greenlets import replace_threads
from training_profiler.safety.background_thread import BackgroundThread
from training_profiler.safety.fault_guard import FaultGuard
from training_profiler.safety.greenlets import NoThreadError

LONG_S = 30.0  # bounds a hang; nothing here waits for long


def started(work, guard=None):
    thread = BackgroundThread("test", work, (guard or FaultGuard()).run, "test part")
    thread.start()
    return thread


def test_stop_ends_the_wait():
    thread = started(lambda thread: thread.wait_for_stop(LONG_S))
    assert thread.is_alive()
    thread.stop()
    assert thread.join(LONG_S)
    assert not thread.is_alive()


def test_second_stop_is_harmless():
    thread = started(lambda thread: thread.wait_for_stop(LONG_S))
    thread.stop()
    thread.stop()
    assert thread.join(LONG_S)


def test_error_disables_the_part_and_ends_the_thread():
    def fail(thread):
        raise ZeroDivisionError("ours")

    guard = FaultGuard()
    assert started(fail, guard).join(LONG_S)
    assert guard.disabled == {"test part": "ZeroDivisionError: ours"}


def test_thread_does_not_wait_for_itself():
    joined = []
    thread = started(lambda thread: joined.append((thread.is_current(), thread.join(LONG_S))))
    thread.join(LONG_S)
    assert joined == [(True, False)]
    assert not thread.is_current()


def test_cpu_time_is_known_after_the_end():
    thread = started(lambda thread: sum(range(100_000)))
    thread.join(LONG_S)
    assert thread.cpu_ns > 0


@pytest.mark.skipif(not hasattr(signal, "pthread_sigmask"), reason="needs signal masks")
def test_thread_blocks_signals():
    masks = []
    thread = started(lambda thread: masks.append(signal.pthread_sigmask(signal.SIG_BLOCK, ())))
    thread.join(LONG_S)
    assert {signal.SIGINT, signal.SIGTERM} <= masks[0]


def test_thread_is_a_daemon_with_our_name():
    seen = []
    thread = started(lambda thread: seen.append(threading.current_thread()))
    thread.join(LONG_S)
    assert (seen[0].name, seen[0].daemon) == ("training_profiler test", True)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_thread_is_gone_in_a_forked_child():
    thread = started(lambda thread: thread.wait_for_stop(LONG_S))
    child = os.fork()
    if not child:
        thread.stop()
        os._exit(0 if thread.join(LONG_S) and not thread.is_alive() else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    thread.stop()
    assert thread.join(LONG_S)


def test_no_greenlet_is_started_in_place_of_a_thread(monkeypatch):
    replace_threads(monkeypatch, "gevent.thread")
    thread = BackgroundThread("test", lambda thread: None, lambda part, work: work(), "test")
    with pytest.raises(NoThreadError, match="gevent"):
        thread.start()
    assert not thread.is_alive()


def test_a_thread_that_began_before_gevent_replaced_threads_ends_without_an_error(monkeypatch):
    lost, real = [], threading.get_ident
    monkeypatch.setattr(sys, "unraisablehook", lost.append)
    thread = started(lambda thread: thread.wait_for_stop(LONG_S))
    main = real()
    replace_threads(monkeypatch, "gevent.thread")
    monkeypatch.setattr(threading, "get_ident", lambda: main if real() == main else -real())
    thread.stop()
    assert thread.join(LONG_S)
    assert lost == []
