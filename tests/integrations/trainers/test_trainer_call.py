"""Whether a trainer's call is still running, which decides whose run a training belongs to."""

import threading
import types
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest

from training_profiler.integrations.trainer_run import TrainerCall

pytestmark = pytest.mark.integrations
SOURCE = """
def train(begin, step):
    begin()
    step()
"""


def make_train(package: str) -> Callable[..., Any]:
    """Return the trainer of a framework named ``package``, which calls ``begin`` and then ``step``."""
    module = types.ModuleType(f"{package}.trainer")
    exec(SOURCE, module.__dict__)
    return module.__dict__["train"]


train = make_train("framework")
calls: list[TrainerCall] = []


def begin() -> None:
    calls.append(TrainerCall("framework"))


def fail() -> None:
    raise RuntimeError


@pytest.fixture(autouse=True)
def no_calls() -> None:
    calls.clear()


def test_trainer_inside_another_leaves_that_running() -> None:
    train(begin, lambda: train(begin, int))
    assert calls[0].is_running(calls[1])


def test_trainer_that_calls_another_at_its_begin_is_running() -> None:
    train(begin, lambda: train(lambda: train(begin, int), int))
    assert calls[0].is_running(calls[1])


def test_trainer_that_raised_is_not_running_in_the_next_call_from_the_same_line() -> None:
    for _ in range(20):
        with pytest.raises(RuntimeError):
            train(begin, fail)
    assert [before.is_running(after) for before, after in pairwise(calls)] == [False] * 19


def test_trainer_that_raised_is_not_running_in_a_call_from_another_line() -> None:
    for _ in range(20):
        with pytest.raises(RuntimeError):
            train(begin, fail)
        train(begin, int)
    assert [before.is_running(after) for before, after in pairwise(calls)] == [False] * 39


def test_trainer_on_another_thread_is_taken_for_running() -> None:
    train(begin, int)
    thread = threading.Thread(target=lambda: train(begin, int))
    thread.start()
    thread.join()
    assert calls[0].is_running(calls[1])
