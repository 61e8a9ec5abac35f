import os
import sys
import traceback
from functools import partial

import pytest

from training_profiler.instrumentation.patches import calls
from training_profiler.instrumentation.patching import Patches
from training_profiler.recording.tracebacks import OURS


def ours(function, *args):
    """Call ``function`` through a function of a patch."""
    source = "def patch(function, *args):\n    return function(*args)\n"
    namespace = {}
    exec(compile(source, os.path.join(OURS, "instrumentation", "patch.py"), "exec"), namespace)
    return namespace["patch"](function, *args)


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


def train():
    ours(fail)


@pytest.fixture
def shown(monkeypatch):
    """The errors shown by the hook without us; ours is installed in front of it, and removed again."""
    shown = []

    def show_in_tests(kind, error, error_traceback):
        assert kind is type(error)
        assert error_traceback is error.__traceback__
        shown.append(error)

    monkeypatch.setattr(sys, "excepthook", show_in_tests)
    monkeypatch.setattr(sys, "__excepthook__", show_in_tests)
    patches = Patches()
    calls.install_excepthook(patches, None, None)
    yield shown
    patches.undo()
    assert sys.excepthook is show_in_tests


def show(error):
    sys.excepthook(type(error), error, error.__traceback__)


def test_frames_of_patches_are_left_out(shown):
    error = caught(train)
    assert names_in(error) == ["caught", "train", "ours", "patch", "fail"]
    show(error)
    assert shown == [error]
    assert names_in(error) == ["caught", "train", "ours", "fail"]


def test_nested_frames_of_patches_are_left_out(shown):
    error = caught(ours, partial(ours, partial(ours, fail)))
    show(error)
    assert "patch" not in names_in(error)
    assert names_in(error)[-1] == "fail"


def test_traceback_beginning_in_a_patch_begins_with_the_program(shown):
    error = caught(ours, fail)
    while names_in(error)[0] != "patch":
        error.__traceback__ = error.__traceback__.tb_next
    show(error)
    assert names_in(error) == ["fail"]


def test_traceback_of_patches_alone_is_empty(shown):
    def failing_patch():
        source = "def patch():\n    raise ValueError\n"
        namespace = {}
        exec(compile(source, os.path.join(OURS, "instrumentation", "patch.py"), "exec"), namespace)
        return namespace["patch"]

    error = caught(failing_patch())
    error.__traceback__ = error.__traceback__.tb_next
    show(error)
    assert error.__traceback__ is None


def test_traceback_without_patches_is_unchanged(shown):
    error = caught(fail)
    before = error.__traceback__
    show(error)
    assert error.__traceback__ is before
    assert names_in(error) == ["caught", "fail"]


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


@pytest.mark.parametrize("function", [fail_because, fail_while_handling, fail_for_nothing])
def test_causes_and_contexts_are_cleaned_too(shown, function):
    error = caught(function)
    show(error)
    assert "patch" not in names_in(error)
    before = error.__cause__ or error.__context__
    assert names_in(before)[-1] == "fail"
    assert "patch" not in names_in(before)


def test_falsy_exception_is_followed_as_cause(shown):
    class Empty(Exception):
        def __bool__(self):
            raise TypeError("neither true nor false")

    def fail_with_empty():
        raise Empty

    error = caught(fail)
    error.__cause__ = caught(ours, fail_with_empty)
    show(error)
    assert "patch" not in names_in(error.__cause__)


def test_cyclic_exception_chain_ends(shown):
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
