import dataclasses
import signal
import traceback
from functools import partial

import pytest

from training_profiler.recording.timed_function import StandIn, timed
from training_profiler.recording.tracebacks import hide_all_our_frames, hide_our_frames


@dataclasses.dataclass(frozen=True)
class Frozen(Exception):
    """Cannot be given a traceback by assignment."""

    code: int


class Section:
    def __enter__(self):
        return None

    def __exit__(self, *exception):
        return None


def names(raised):
    return [frame.name for frame in raised.traceback]


@pytest.mark.parametrize("error", [Frozen(3), KeyError(3), KeyboardInterrupt(), SystemExit(3)])
def test_exceptions_pass_decorated_functions_without_our_frames(error):
    def fail():
        raise error

    with pytest.raises(type(error)) as raised:
        timed(fail, lambda name: Section(), "a")()
    hide_all_our_frames(raised.value)
    assert names(raised) == ["test_exceptions_pass_decorated_functions_without_our_frames", "fail"]


def test_exception_raised_by_us_alone_shows_the_caller():
    with pytest.raises(NotImplementedError) as raised:
        timed(StandIn(3)._profiler_like, lambda name: Section(), "a")(3)
    assert names(raised) == ["test_exception_raised_by_us_alone_shows_the_caller"]


def ours(stage, work):
    """Return a function of a stage of ours that calls ``work``."""
    module = {"__name__": f"training_profiler.{stage}.example", "work": work}
    exec("def of_ours(*arguments): work(*arguments)", module)
    return module["of_ours"]


def library(*arguments):
    """Fail."""
    raise KeyboardInterrupt


def shown(function, hide):
    """Return the functions in the traceback that a call leaves, below this one."""
    try:
        function()
    except KeyboardInterrupt as error:
        if hide is hide_our_frames:  # the function that calls it is ours
            error.with_traceback(error.__traceback__.tb_next)
        hide(error)
        return [frame.name for frame in traceback.extract_tb(error.__traceback__) if frame.name != "shown"]


@pytest.mark.parametrize("hide", [hide_our_frames, hide_all_our_frames])
def test_a_library_at_work_for_us_leaves_no_frames(hide):
    assert shown(ours("aggregation", library), hide) == []
    assert shown(ours("recording", ours("aggregation", library)), hide) == []
    assert shown(ours("recording", library), hide) == ["library"]  # a function of the program


@pytest.mark.parametrize("hide", [hide_our_frames, hide_all_our_frames])
def test_a_signal_handler_that_interrupts_a_library_at_work_for_us_is_shown(hide):
    class Handler:
        def method(self, signum, frame):
            library(signum)

        def variable(self, *arguments):
            library(*arguments)

        __call__ = method

    def interrupted(handler):
        signal.signal(signal.SIGUSR1, handler)
        signal.raise_signal(signal.SIGUSR1)

    before = signal.getsignal(signal.SIGUSR1)
    try:
        for handler, name in ((Handler().method, "method"), (Handler().variable, "variable"), (Handler(), "method")):
            work = ours("storage", partial(interrupted, handler))
            assert shown(work, hide) == [name, "library"]
    finally:
        signal.signal(signal.SIGUSR1, before)
