"""What the threads of a worker show at one moment: the phase, and the line of the user's code or of a library."""

import os
from collections.abc import Callable, Mapping
from types import CodeType
from typing import Final, NamedTuple

from training_profiler.recording.worker_sums import HAND_OVER, IDLE, STARTING, TRANSFORM
from training_profiler.sampling.batch_phases import PhaseReader
from training_profiler.sampling.location import Location, function_name, line_of
from training_profiler.sampling.stacks import Frame, StackReader
from training_profiler.sampling.user_code import Places, UserCode, places_of_this_process

_FETCH: Final = "/torch/utils/data/_utils/fetch.py"
_QUEUES: Final = ("/multiprocessing/queues.py", "/multiprocess/queues.py")
_PICKLING: Final = ("/multiprocessing/reduction.py", "/multiprocess/reduction.py")
_FEEDS: Final = "_feed"  # of a queue's thread, which pickles what was put
_PACKAGE: Final = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
MOST_FRAMES: Final = 1000


class Seen(NamedTuple):
    """What one sample shows."""

    phase: str
    location: Location | None = None


class WorkerStackReader:
    """Reads the stacks of a worker. Not thread-safe.

    Args:
        loop: the code of torch's loop of a worker. What is below it on the stack belongs to the training.
        places: the paths of this process.
    """

    def __init__(self, loop: CodeType, places: Callable[[], Places] = places_of_this_process) -> None:
        self._loop = loop
        code = UserCode(places())
        self._stacks, self._phases = StackReader(code), PhaseReader()
        self._users = code

    def read(self, frames: Mapping[int, Frame], main_thread: int) -> Seen | None:
        """Return what the innermost frames of all threads show; None while the worker is not in its loop.

        A queue's thread hands batches over beside the main thread. That counts where the main thread has nothing to do.
        """
        stack = self._in_loop(frames.get(main_thread))
        if stack is None:
            return None
        seen = self._main(stack)
        if seen.phase == IDLE and any(_is_pickling(frame) for thread, frame in frames.items() if thread != main_thread):
            return Seen(HAND_OVER)
        return seen

    def _in_loop(self, frame: Frame | None) -> list[Frame] | None:
        """Return the frames inside of the loop, the innermost first."""
        stack: list[Frame] = []
        while frame is not None and len(stack) < MOST_FRAMES:
            if frame.f_code is self._loop:
                return stack
            if not frame.f_code.co_filename.startswith(_PACKAGE):
                stack.append(frame)
            frame = frame.f_back
        return None

    def _main(self, stack: list[Frame]) -> Seen:
        if not stack or _path(stack[-1]).endswith(_QUEUES):
            is_putting = bool(stack) and stack[-1].f_code.co_name == "put"
            return Seen(HAND_OVER if is_putting else IDLE)
        fetch = next((at for at, frame in enumerate(stack) if _path(frame).endswith(_FETCH)), None)
        calls = [(frame.f_code, frame.f_lasti) for frame in stack[: None if fetch is None else fetch + 1]]
        phase = STARTING if fetch is None else self._phases.phase_of(calls[:-1], calls[-1])
        return Seen(phase, self._location(stack, has_inside=phase == TRANSFORM))

    def _location(self, stack: list[Frame], has_inside: bool) -> Location | None:
        """Return the innermost line of the user's code, or the first and last line of a library without one.

        Args:
            stack: the frames inside of the loop.
            has_inside: whether what ran in a library below the user's line says more, as with several transforms.
        """
        place = self._stacks.place(stack[0], until=self._loop)
        if place is not None:
            location = self._stacks.location(place)
            return location if location is None or has_inside else location.alone()
        named = [(frame, name) for frame in stack if (name := self._library(frame.f_code.co_filename))]
        if not named:
            return None
        # torch's own frames only pass a call on, unless there are no others.
        named = [each for each in named if not each[1].startswith("torch/utils/data/_utils/")] or named[-1:]
        (outer, outer_name), (inner, inner_name) = named[-1], named[0]
        text = f"{inner_name}:{line_of(inner.f_code, inner.f_lasti)} {function_name(inner.f_code)}"
        return Location(
            outer_name,
            line_of(outer.f_code, outer.f_lasti),
            function_name(outer.f_code),
            inside="" if inner is outer else text,
        )

    def _library(self, filename: str) -> str | None:
        torch = filename.rpartition(f"{os.sep}torch{os.sep}")[2] if f"{os.sep}torch{os.sep}" in filename else ""
        return f"torch/{torch}" if torch else self._users.shown_library(filename)


def _path(frame: Frame) -> str:
    return frame.f_code.co_filename.replace("\\", "/")


def _is_pickling(frame: Frame | None) -> bool:
    """Return whether a thread of a queue pickles; waiting is not work."""
    is_pickling = False
    for _ in range(MOST_FRAMES):
        if frame is None:
            return False
        path = _path(frame)
        is_pickling |= path.endswith(_PICKLING)
        if frame.f_code.co_name == _FEEDS and path.endswith(_QUEUES):
            return is_pickling
        frame = frame.f_back
    return False
