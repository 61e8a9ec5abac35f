"""An exception raised by a signal handler of the program inside our code is raised again."""

import functools
import os
import signal

import pytest

from training_profiler.recording.tracebacks import reraise_if_foreign
from training_profiler.safety.fault_guard import FaultGuard


def limit(signum, frame):
    raise TimeoutError("the program's own limit")


class Limit:
    def __call__(self, signum, frame):
        limit(signum, frame)

    def method(self, signum, frame):
        limit(signum, frame)


@pytest.fixture(params=[limit, Limit(), Limit().method, functools.partial(limit)])
def handled(request):
    before = signal.signal(signal.SIGUSR1, request.param)
    yield
    signal.signal(signal.SIGUSR1, before)


def interrupted():
    os.kill(os.getpid(), signal.SIGUSR1)


def test_time_limit_of_the_program_is_reraised(handled):
    guard = FaultGuard()
    with pytest.raises(TimeoutError, match="the program's own limit"):
        guard.run("statistics", interrupted)
    assert guard.disabled == {}


def test_error_of_our_own_is_not_reraised(handled):
    def fails():
        raise TimeoutError("ours")

    guard = FaultGuard()
    guard.run("statistics", fails)
    assert guard.disabled == {"statistics": "TimeoutError: ours"}


def test_error_without_traceback_is_not_reraised(handled):
    reraise_if_foreign(ValueError())
