"""The call of a framework's trainer by the program. It may end by an exception that no hook of the framework shows."""

import sys
import threading
from types import CodeType, FrameType
from typing import NamedTuple


class _Frame(NamedTuple):
    id: int
    code: CodeType
    instruction: int


class TrainerCall:
    """The call of a trainer of ``package`` that the calling thread is in.

    No frame is kept, because its variables would live longer: the model, a batch.
    """

    def __init__(self, package: str) -> None:
        self._thread = threading.get_ident()
        self._inside: list[_Frame] = []  # frames of the trainer and of what it calls, innermost first
        self._outside: list[_Frame] = []  # those that wait for the trainer, from its own
        frame: FrameType | None = sys._getframe(1)
        while frame is not None:
            self._outside.append(_Frame(id(frame), frame.f_code, frame.f_lasti))
            if str(frame.f_globals.get("__name__", "")).partition(".")[0] == package:
                self._inside += self._outside
                self._outside = []
            frame = frame.f_back

    def is_running(self, now: "TrainerCall") -> bool:
        """Return whether this call has not returned, seen from another one, which may be inside it."""
        if now._thread != self._thread:
            return True
        stack = now._inside + now._outside
        outside = stack[len(stack) - len(self._outside) :]
        inside = stack[: len(stack) - len(self._outside)]
        if outside != self._outside or not inside or not self._inside or inside[-1].id != self._inside[-1].id:
            return False
        # The same stack again is another call from the same line: its frames may have the ids of the old ones.
        return [frame[1:] for frame in inside] != [frame[1:] for frame in self._inside]
