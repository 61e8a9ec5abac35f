"""The lock on which samplers sleep: the main thread hands over the GIL, and no interpreter is asked after its end."""

import hashlib
import os
import subprocess
import sys
import threading
import time
from collections import Counter

import pytest
import torch

from tests.support.recording import implementation_of

ROUNDS = 60
SHORT_S = 0.02
SMALL = torch.zeros(8)  # an operator on it gives up the GIL for about a microsecond
BLOCK = b"x" * 1_500_000


@pytest.fixture
def lock():
    return implementation_of("C").new_stop()


def test_it_wakes_when_it_is_released_and_once(lock):
    assert lock.acquire(True, 0.0) is False
    lock.release()
    assert lock.acquire(True, 60.0) is True
    assert lock.acquire(True, 0.0) is False
    with pytest.raises(RuntimeError):
        lock.release()


@pytest.mark.parametrize("wrong", [(), (True,), (True, "1"), (True, 1.0, 1)])
def test_wrong_arguments_are_refused(wrong, lock):
    with pytest.raises(TypeError):
        lock.acquire(*wrong)
    with pytest.raises(TypeError):
        type(lock)(1)


@pytest.mark.parametrize("timeout_s", [-1.0, float("nan"), float("-inf")])
def test_odd_times_are_no_time(timeout_s, lock):
    assert lock.acquire(True, timeout_s) is False


def test_it_wakes_from_the_longest_sleep(lock):
    woken = []
    thread = threading.Thread(target=lambda: woken.append(lock.acquire(True, float("inf"))))
    thread.start()
    lock.release()
    thread.join(60)
    assert woken == [True]


def gives_up_shortly(spent_s):
    begin_s = time.perf_counter()
    while time.perf_counter() < begin_s + SHORT_S:
        sum(range(2000))
        torch.add(SMALL, 1.0)
    spent_s["gives_up_shortly"] += time.perf_counter() - begin_s


def gives_up_for_long(spent_s):
    begin_s = time.perf_counter()
    hashlib.sha256(BLOCK)
    spent_s["gives_up_for_long"] += time.perf_counter() - begin_s


@pytest.mark.skipif(threading.current_thread() is not threading.main_thread(), reason="Python runs pending calls there")
@pytest.mark.flaky(reruns=1)  # real threads, on a machine that may be busy
def test_code_that_gives_up_the_gil_often_has_its_share_of_the_samples(lock):
    main, seen, spent_s = threading.get_ident(), Counter(), Counter()

    def sample():
        while not lock.acquire(True, 0.0037):
            frame = sys._current_frames()[main]
            while frame is not None and frame.f_code.co_name not in ("gives_up_shortly", "gives_up_for_long"):
                frame = frame.f_back
            if frame is not None:
                seen[frame.f_code.co_name] += 1

    thread = threading.Thread(target=sample)
    thread.start()
    for _ in range(ROUNDS):
        gives_up_shortly(spent_s)
        gives_up_for_long(spent_s)
    lock.release()
    thread.join()
    assert seen.total() > 50
    share = seen["gives_up_shortly"] / seen.total()
    assert share == pytest.approx(spent_s["gives_up_shortly"] / spent_s.total(), abs=0.1 + 1.5 / seen.total() ** 0.5)
    assert 0 < lock.waited_ns() < 1e9 * spent_s.total()


@pytest.mark.skipif(threading.current_thread() is not threading.main_thread(), reason="Python runs pending calls there")
def test_it_knows_whether_the_main_thread_ran_python(lock):
    seen = {"python": [], "asleep": []}
    doing = ["python"]

    def sample():
        while not lock.acquire(True, 0.002):
            now, was_handed = doing[0], lock.was_handed_over()
            seen[now].append(was_handed)

    thread = threading.Thread(target=sample)
    thread.start()
    while len(seen["python"]) < 50:
        sum(range(1000))
    doing[0] = "asleep"
    while len(seen["asleep"]) < 50:
        time.sleep(0.1)
    lock.release()
    thread.join()
    # The first of a kind may be late by one. Under load the main thread comes back from a call after the next sample.
    assert sum(seen["python"]) >= 0.9 * len(seen["python"])
    assert sum(seen["asleep"]) <= 0.1 * len(seen["asleep"])


ENDS = """
import ctypes, sys, threading
from training_profiler.recording.implementation import native_implementation
lock = native_implementation().new_stop()
threading.Thread(target=lambda: [lock.acquire(True, 0.05) for _ in range(100)], daemon=True).start()
libc = ctypes.CDLL(None)
libc.on_exit(libc.sleep, None)  # for as many seconds as the exit status is
sys.exit(1)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="on_exit() is of glibc")
def test_a_sampler_that_is_left_alone_asks_nothing_of_an_interpreter_that_is_gone():
    implementation_of("C")
    ended = subprocess.run([sys.executable, "-c", ENDS], capture_output=True, text=True, timeout=240)
    assert (ended.returncode, ended.stderr) == (1, "")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are forked")
def test_a_forked_child_has_locks_of_its_own(lock):
    thread = threading.Thread(target=lambda: [lock.acquire(True, 0.0001) for _ in range(2000)])
    thread.start()
    statuses = []
    for _ in range(10):
        child = os.fork()
        if not child:
            own = type(lock)()
            is_right = own.acquire(True, 0.001) is False
            lock.release()  # as where a child ends what it has inherited
            os._exit(not is_right)
        statuses.append(os.waitpid(child, 0)[1])
    thread.join()
    assert statuses == [0] * 10
