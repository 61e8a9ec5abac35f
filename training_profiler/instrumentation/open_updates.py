"""The optimizer updates under way on the training thread."""

from types import CodeType, FrameType
from typing import Any

from training_profiler.recording.fields import Fields, field


class OpenUpdates(Fields):
    """Distinguishes outermost updates from nested ones: of a base class, or of a wrapped optimizer."""

    # The id of the optimizer, and the id and the code of its frame, outermost first. A frame keeps all of its locals
    # alive, and the id of one that has ended may be that of a caller's, which has other code.
    open: list[tuple[int, int, CodeType | None]]
    _backwards: int = field(0)  # of the program, at the last update

    def __init__(self) -> None:
        self.open = []
        self._backwards = 0

    def begin(self, optimizer: Any, frame: FrameType | None) -> tuple[bool, bool]:
        """Return whether this update is outermost, and whether one before it ended by an exception."""
        had_failed = bool(self.open) and not self.is_running(frame)
        self.open.append((id(optimizer), id(frame), None if frame is None else frame.f_code))
        return len(self.open) == 1, had_failed

    def end(self, optimizer: Any) -> bool:
        """Return whether the update that ended was outermost."""
        while self.open and self.open[-1][0] != id(optimizer):
            self.open.pop()
        if self.open:
            self.open.pop()
            return not self.open
        return False

    def follows_backward(self, backwards: int) -> bool:
        """Return whether there are more backward passes than at the last update; remember them for the next."""
        follows, self._backwards = backwards != self._backwards, backwards
        return follows

    def is_running(self, frame: FrameType | None) -> bool:
        """Return whether ``frame`` is within an update; forget updates that ended by an exception."""
        if self.open and not _is_running(*self.open[0][1:], frame):
            self.open.clear()  # no hook is called when an update raises
        return bool(self.open)


def _is_running(frame_id: int, code: CodeType | None, frame: FrameType | None) -> bool:
    frame = frame.f_back if frame is not None else None
    while frame is not None:
        if id(frame) == frame_id and frame.f_code is code:
            return True
        frame = frame.f_back
    return False
