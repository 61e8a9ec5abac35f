"""Finds the line of the user's code that makes a call of torch, and the library's line between them."""

from types import CodeType, FrameType
from typing import Final

from training_profiler.sampling.location import Instruction, function_name, line_of
from training_profiler.sampling.stacks import StackReader
from training_profiler.sampling.user_code import UserCode, places_of_this_process
from training_profiler.snapshot.program import CallSite

INSTRUCTION_BYTES: Final = 2


class CallSiteReader:
    """Reads the stack at a call. The paths of the process are read at the first call, when they are known."""

    def __init__(self) -> None:
        self._code: UserCode | None = None
        self._stacks: StackReader | None = None

    def read(self, frame: FrameType | None) -> CallSite | None:
        """Return the user's line nearest to ``frame``; None without user code on the stack."""
        if self._code is None or self._stacks is None:
            self._code = UserCode(places_of_this_process())
            self._stacks = StackReader(self._code)
        place = self._stacks.place(frame)
        if place is None:
            return None
        code, instruction = place.users
        shown = self._code.shown(code.co_filename)
        if shown is None:
            return None
        line, column = _position(code, instruction)
        path = self._code.path(code.co_filename)
        return CallSite(shown, line, path, column, "" if place.inner is None else self._library_line(place.inner))

    def _library_line(self, frame: Instruction) -> str:
        assert self._code is not None
        code, instruction = frame
        file = self._code.shown_library(code.co_filename)
        return f"{file}:{line_of(code, instruction)} {function_name(code)}"


def _position(code: CodeType, instruction: int) -> tuple[int, int]:
    """Return the line and the column, in bytes of UTF-8, at which the call begins; -1 for an unknown column."""
    at = instruction // INSTRUCTION_BYTES
    positions = list(code.co_positions())
    line, _, column, _ = positions[at] if at < len(positions) else (None, None, None, None)
    return line or line_of(code, instruction), -1 if column is None else column
