"""Tracebacks are shown without our frames: by the hook for uncaught exceptions, and in what the program catches."""

import os
import sys
import traceback
from functools import partial

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from training_profiler.instrumentation.patches import calls
from training_profiler.instrumentation.patching import Patches
from training_profiler.recording.tracebacks import OURS

INPUTS = torch.ones(4, 2)


def of_ours(source):
    """Return the function ``patch`` of ``source``, as if a file of the package had it."""
    namespace = {}
    exec(compile(source, os.path.join(OURS, "instrumentation", "patch.py"), "exec"), namespace)
    return namespace["patch"]


ours = of_ours("def patch(function, *args):\n    return function(*args)\n")
failing = of_ours("def patch():\n    raise ValueError\n")


def names_in(error):
    return [frame.name for frame in traceback.extract_tb(error.__traceback__)]


def caught(function, *args):
    """Return the exception of ``function``."""
    try:
        function(*args)
    except BaseException as error:
        return error
    raise AssertionError("nothing was raised")


def fail():
    raise KeyError("model")


@pytest.fixture
def show():
    """Return a function that shows an uncaught error; ours is installed in front of the hook, and removed again."""
    shown = []

    def show_in_tests(kind, error, error_traceback):
        assert kind is type(error)
        assert error_traceback is error.__traceback__
        shown.append(error)

    patches = Patches()
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(sys, "excepthook", show_in_tests)
        monkeypatch.setattr(sys, "__excepthook__", show_in_tests)
        calls.install_excepthook(patches, None, None)
        yield lambda error: sys.excepthook(type(error), error, error.__traceback__)
        patches.undo()
        assert sys.excepthook is show_in_tests
    assert shown


@pytest.mark.parametrize(
    ("call", "cut", "before", "after"),
    [
        ((ours, fail), 0, ["caught", "patch", "fail"], ["caught", "fail"]),
        ((ours, partial(ours, partial(ours, fail))), 0, ["caught", *["patch"] * 3, "fail"], ["caught", "fail"]),
        ((ours, fail), 1, ["patch", "fail"], ["fail"]),
        ((failing,), 1, ["patch"], []),
        ((fail,), 0, ["caught", "fail"], ["caught", "fail"]),
    ],
)
def test_frames_of_patches_are_left_out(show, call, cut, before, after):
    error = caught(*call)
    for _ in range(cut):
        error.__traceback__ = error.__traceback__.tb_next
    assert names_in(error) == before
    first = error.__traceback__
    show(error)
    assert names_in(error) == after
    assert before != after or error.__traceback__ is first


def fail_because():
    try:
        ours(fail)
    except KeyError as error:
        raise RuntimeError("no model") from error


def fail_while_handling():
    try:
        ours(fail)
    except KeyError:
        ours(lambda: [][0])


def fail_for_nothing():
    try:
        ours(fail)
    except KeyError:
        raise RuntimeError("no model") from None


class Empty(Exception):
    def __bool__(self):
        raise TypeError("neither true nor false")


def fail_because_of_nothing():
    def fail():
        raise Empty

    try:
        ours(fail)
    except Empty as error:
        raise RuntimeError from error


@pytest.mark.parametrize("function", [fail_because, fail_while_handling, fail_for_nothing, fail_because_of_nothing])
def test_causes_and_contexts_are_cleaned_too(show, function):
    error = caught(function)
    show(error)
    before = error.__context__ if error.__cause__ is None else error.__cause__
    assert "patch" not in names_in(error)
    assert names_in(before) == [function.__name__, "fail"]


def test_cyclic_exception_chain_ends(show):
    one, other = caught(ours, fail), caught(ours, fail)
    one.__cause__, other.__cause__ = other, one
    show(one)
    assert "patch" not in names_in(one) + names_in(other)


def test_excepthook_of_the_program_is_left_alone(monkeypatch):
    monkeypatch.setattr(sys, "excepthook", theirs := (lambda *error: None))
    patches = Patches()
    calls.install_excepthook(patches, None, None)
    assert sys.excepthook is theirs
    assert patches.are_in_place()


class Broken(TensorDataset):
    def __getitem__(self, index):
        raise OSError("disk")


class BrokenGradient(torch.autograd.Function):
    @staticmethod
    def forward(context, x):
        return 2 * x

    @staticmethod
    def backward(context, gradient):
        raise OSError("gradient")


FAILURES = {
    "forward pass": lambda model: model(torch.ones(1, 7)),
    "fetch": lambda model: next(iter(DataLoader(Broken(INPUTS)))),
    "backward pass": lambda model: BrokenGradient.apply(model(INPUTS)).sum().backward(),
    "checkpoint": lambda model: torch.save([1], "no/such/folder/model.pt"),
    "update": lambda model: torch.optim.LBFGS(model.parameters()).step(lambda: 1 / 0),
    "gradient norm": lambda model: nn.utils.clip_grad_norm_(7, 1.0),
    "transfer": lambda model: INPUTS.to("no such device"),
}


@pytest.mark.parametrize("failure", FAILURES.values(), ids=FAILURES)
def test_errors_that_pass_through_patches_have_no_frames_of_ours(instrumented, show, failure):
    instrumented.context.current_detector()
    error = caught(failure, nn.Linear(2, 1))
    text = "".join(traceback.format_exception(error))
    assert "training_profiler/instrumentation" not in text
    assert "frozen importlib" not in text
    show(error)
    shown = [frame.f_globals["__name__"] for frame, _ in traceback.walk_tb(error.__traceback__)]
    assert shown[:2] == [__name__, __name__]
    assert not [name for name in shown if name.startswith("training_profiler")]
