import dataclasses

import pytest

from training_profiler.recording.stand_in import StandIn
from training_profiler.recording.timed_function import timed
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
    assert names(raised) == ["test_exceptions_pass_decorated_functions_without_our_frames", "fail"]


def test_frozen_exceptions_are_shown_without_our_frames():
    def fail():
        raise Frozen(3)

    with pytest.raises(Frozen) as raised:
        timed(fail, lambda name: Section(), "a")()
    hide_all_our_frames(raised.value)
    hide_our_frames(raised.value)
    assert names(raised)[-1] == "fail"


def test_exception_raised_by_us_alone_shows_the_caller():
    with pytest.raises(NotImplementedError) as raised:
        timed(StandIn(3)._profiler_like, lambda name: Section(), "a")(3)
    assert names(raised) == ["test_exception_raised_by_us_alone_shows_the_caller"]
