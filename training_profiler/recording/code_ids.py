"""The functions around a call as a key that is much quicker to make and compare than their names are to read."""

from collections.abc import Callable
from types import FrameType
from typing import Final

from training_profiler.recording.fields import IS_NATIVE
from training_profiler.recording.implementation import native_module

MOST_CODES: Final = 12  # as in native/native.h


def python_code_ids(frame: FrameType | None, most: int) -> tuple[int, ...]:
    """Return the ids of the code of ``frame`` and of those around it, outwards, of ``most`` at most."""
    found: list[int] = []
    while frame is not None and len(found) < most:
        found.append(id(frame.f_code))
        frame = frame.f_back
    return tuple(found)


code_ids: Final[Callable[[FrameType | None, int], tuple[int, ...]]] = (
    native_module().code_ids if IS_NATIVE else python_code_ids
)
