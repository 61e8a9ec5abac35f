"""Reads the stacks of all threads of this process, for a training that hangs."""

import os
import threading
from collections.abc import Mapping
from types import CodeType
from typing import Final

from training_profiler.base.text import printable
from training_profiler.safety.background_thread import OWN_THREADS
from training_profiler.sampling.frames import current_frames
from training_profiler.sampling.location import function_name, line_of
from training_profiler.sampling.user_code import Places, UserCode, places_of_this_process
from training_profiler.snapshot.ranks import StackFrame

MOST_FRAMES: Final = 200  # of a stack, the innermost ones
_OWN_FILES: Final = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep


def read_stacks(places: Places | None = None) -> dict[int, tuple[str, tuple[StackFrame, ...]]]:
    """Return the name of each thread, by its ident, and its frames, outermost first, without those of the profiler."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    stacks = _instructions()
    naming = FrameNames(places or places_of_this_process())
    return {
        ident: (printable(names.get(ident, f"thread {ident}")), tuple(map(naming.frame, stack)))
        for ident, stack in stacks.items()
        if not names.get(ident, "").startswith(OWN_THREADS)
    }


def _instructions() -> Mapping[int, list[tuple[CodeType, int]]]:
    """Return code and instruction of each frame; a frame itself would keep the tensors of a step alive."""
    stacks = {}
    for ident, frame in current_frames().items():
        stack: list[tuple[CodeType, int]] = []
        innermost = frame
        while innermost is not None and len(stack) < MOST_FRAMES:
            if not is_own_file(innermost.f_code.co_filename):
                stack.append((innermost.f_code, innermost.f_lasti))
            innermost = innermost.f_back  # type: ignore[assignment]
        stacks[ident] = stack[::-1]
    return stacks


def is_own_file(filename: str) -> bool:
    """Return whether a file is the profiler's."""
    return filename.startswith(_OWN_FILES)


class FrameNames:
    """Names frames as reports do: the user's files by their short names, others below the folder they were found in."""

    def __init__(self, places: Places) -> None:
        self._user_code = UserCode(places)
        self._folders = sorted({*places.search_path, *places.standard_library}, key=len, reverse=True)

    def frame(self, instruction: tuple[CodeType, int]) -> StackFrame:
        """Return the frame of a code object and the instruction in it."""
        code, offset = instruction
        return self.named(code.co_filename, line_of(code, offset), function_name(code))

    def named(self, filename: str, line: int, function: str) -> StackFrame:
        """Return the frame at this line of a file."""
        shown = self._user_code.shown(filename)
        return StackFrame(shown or self._of_library(filename), line, function, shown is not None)

    def _of_library(self, filename: str) -> str:
        folder = next((folder for folder in self._folders if filename.startswith(folder + os.sep)), None)
        return printable(filename if folder is None else filename[len(folder) + 1 :])
