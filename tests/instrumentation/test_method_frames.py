import functools
import sys
from contextlib import contextmanager
from types import CodeType

import pytest

from training_profiler.instrumentation.loop_detection.modules import MAX_FRAMES, MethodFrames


class Root:
    """A stand-in for ``torch.nn.Module``."""


def here():
    """Return the caller's frame."""
    return sys._getframe(1)


def passed_on(function):
    @functools.wraps(function)
    def wrapper(*args):
        return function(*args)

    return wrapper


class Policy(Root):
    def act(self):
        return here(), frames.outermost(here())

    def through_another(self):
        return here(), self.act()[1]

    def through_a_function(self):
        return plain(self)

    @passed_on
    def decorated(self):
        return here(), frames.outermost(here())

    @classmethod
    def of_class(cls):
        return here(), frames.outermost(here())

    @staticmethod
    def of_nothing():
        return here(), frames.outermost(here())

    @contextmanager
    def entered(self):
        yield frames.outermost(here())

    def nested(self, depth):
        return self.nested(depth - 1) if depth else frames.outermost(here())


class Other:
    """Not a module, but with a method of the same name."""

    def act(self):
        return here(), frames.outermost(here())


def plain(policy):
    return policy.act()


def act():
    return here(), frames.outermost(here())


frames = MethodFrames(Root)


@pytest.fixture(autouse=True)
def new_frames(monkeypatch):
    monkeypatch.setattr(sys.modules[__name__], "frames", MethodFrames(Root))


@pytest.mark.parametrize("call", [Policy().act, Policy().through_another, Policy().decorated, Policy.of_class])
def test_method_is_identified_by_frame_and_code(call):
    frame, found = call()
    assert found == (id(frame), id(frame.f_code))


def test_static_method_is_a_method():
    frame, found = Policy.of_nothing()
    assert found == (id(frame), id(frame.f_code))


@pytest.mark.parametrize("call", [Other().act, act, lambda: (None, frames.outermost(here()))])
def test_other_functions_are_not_methods(call):
    assert call()[1] is None


def test_plain_function_ends_the_search():
    frame, found = Policy().through_a_function()
    assert frame.f_code is Policy.act.__code__
    assert found == (id(frame), id(frame.f_code))


def test_generator_method_is_a_method():
    with Policy().entered() as found:
        assert found is not None


def test_method_of_later_class_is_recognized():
    assert Policy().act()[1] is not None

    class Later(Policy):
        def run(self):
            return here(), frames.outermost(here())

    frame, found = Later().run()
    assert found == (id(frame), id(frame.f_code))


def test_inner_function_is_not_a_method():
    class Model(Root):
        def run(self):
            def act():
                return frames.outermost(here())

            return act()

    assert Model().run() is None


def test_only_the_innermost_frames_are_searched():
    assert Policy().nested(3 * MAX_FRAMES) is not None


def test_without_a_frame_there_is_no_method():
    assert frames.outermost(None) is None


def test_frames_are_not_kept():
    Policy().act()
    assert {type(code) for code, _ in frames._is_method.values()} == {CodeType}
