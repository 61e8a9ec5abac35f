"""Jobs that may wait are done on a thread beside the training, in order, as many as fit."""

import threading

import pytest

from training_profiler.runtime import terminal
from training_profiler.runtime.terminal import OutputThread
from training_profiler.safety.fault_guard import BackgroundThread, FaultGuard

LONG_S = 60.0  # longer than any machine takes


@pytest.fixture
def thread():
    thread = OutputThread("test", FaultGuard().run, "test", most_jobs=4, most_bytes=100)
    yield thread
    thread.stop()
    assert thread.join(LONG_S)


class Frozen:
    """A job that waits until ``thaw``."""

    def __init__(self, thread):
        self._is_thawed, self._is_running = threading.Event(), threading.Event()
        assert thread.put(self._wait)
        assert self._is_running.wait(LONG_S)

    def _wait(self):
        self._is_running.set()
        self._is_thawed.wait(LONG_S)

    def thaw(self):
        self._is_thawed.set()


def test_waiting_bytes_are_limited(thread):
    frozen = Frozen(thread)
    assert thread.put(lambda: None, 60)
    assert not thread.put(lambda: None, 60)
    assert thread.put(lambda: None, 40)
    frozen.thaw()
    assert thread.wait(LONG_S)
    assert thread.put(lambda: None, 1000)  # a single large job is taken


def test_a_wait_is_given_up_without_progress(thread):
    frozen = Frozen(thread)
    assert not thread.wait(0.01)
    assert not thread.wait(LONG_S)  # at once: nothing has moved since
    frozen.thaw()
    while thread.waiting:
        pass
    assert thread.wait(LONG_S)


def test_without_a_thread_jobs_are_done_at_once(monkeypatch):
    def cannot_start(thread):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(BackgroundThread, "start", cannot_start)
    thread, done = OutputThread("test", FaultGuard().run, "test"), []
    assert thread.put(lambda: done.append(threading.current_thread()))
    assert done == [threading.current_thread()]
    assert thread.wait(LONG_S)


def test_regular_work_is_done_between_jobs_and_survives_its_failure(monkeypatch):
    monkeypatch.setattr(terminal, "IDLE_S", 0.0)
    ticks, has_ticked = [], threading.Event()

    def tick():
        ticks.append(1)
        if len(ticks) == 3:
            has_ticked.set()
            raise ValueError("a mistake")
        return 0.0 if len(ticks) < 3 else LONG_S

    guard, done = FaultGuard(), []
    thread = OutputThread("test", guard.run, "test", tick)
    thread.put(lambda: None)
    assert has_ticked.wait(LONG_S)
    thread.put(lambda: done.append(1))
    assert thread.wait(LONG_S)
    thread.stop()
    assert thread.join(LONG_S)
    assert (done, list(guard.disabled), len(ticks)) == ([1], ["test by time"], 3)
