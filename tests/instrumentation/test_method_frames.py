import functools
import sys
from contextlib import contextmanager
from types import CodeType

import pytest

from training_profiler.instrumentation.loop_detection.modules import MAX_FRAMES, MethodFrames


class Root:
    """A stand-in for ``torch.nn.Module``."""


def found():
    """Return the caller's frame, and the method that is found for it."""
    return sys._getframe(1), frames.outermost(sys._getframe(1))


def passed_on(function):
    @functools.wraps(function)
    def wrapper(*args):
        return function(*args)

    return wrapper


class Policy(Root):
    def act(self):
        return found()

    def through_another(self):
        return sys._getframe(), self.act()[1]

    def through_a_function(self):
        return plain(self)

    @passed_on
    def decorated(self):
        return found()

    @classmethod
    def of_class(cls):
        return found()

    @staticmethod
    def of_nothing():
        return found()

    @contextmanager
    def entered(self):
        yield found()[1]

    def nested(self, depth):
        return self.nested(depth - 1) if depth else found()[1]

    def with_inner(self):
        def act():
            return found()

        return act()


class Other:
    """Not a module, but with a method of the same name."""

    def act(self):
        return found()


def plain(policy):
    return policy.act()


def act():
    return found()


frames = MethodFrames(Root)


@pytest.fixture(autouse=True)
def new_frames(monkeypatch):
    monkeypatch.setattr(sys.modules[__name__], "frames", MethodFrames(Root))


METHODS = [Policy().act, Policy().through_another, Policy().decorated, Policy.of_class, Policy.of_nothing]


@pytest.mark.parametrize("call", [*METHODS, Policy().through_a_function])
def test_method_is_identified_by_frame_and_code(call):
    frame, method = call()
    assert method == (id(frame), id(frame.f_code))


@pytest.mark.parametrize("call", [Other().act, act, lambda: found(), Policy().with_inner])
def test_other_functions_are_not_methods(call):
    assert call()[1] is None
    assert frames.outermost(None) is None


def test_generators_and_deep_and_later_methods_are_methods():
    with Policy().entered() as method:
        assert method is not None
    assert Policy().nested(3 * MAX_FRAMES) is not None

    class Later(Policy):
        def run(self):
            return found()

    assert Later().run()[1] is not None


def test_frames_are_not_kept():
    Policy().act()
    assert {type(code) for code, _ in frames._is_method.values()} == {CodeType}
