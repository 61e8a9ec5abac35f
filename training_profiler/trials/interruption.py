"""Ctrl-C, and what schedulers and terminals send: it ends what a session waits for, and nothing in the middle."""

import signal
from types import FrameType, TracebackType
from typing import Any, Final

ASKED_TO_END: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interruption:
    """Notes that the user wants the session to end. It is raised where the session asks, and only there.

    Raised anywhere, it could come between the start of a training and the note of it, or while files are removed. The
    same goes for a second one, so that has no further effect.
    """

    def __init__(self) -> None:
        self.has_come = False
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> "Interruption":
        for number in ASKED_TO_END:
            if signal.getsignal(number) is not signal.SIG_IGN:  # as behind nohup
                self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for number, before in self._before.items():
            signal.signal(number, before)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.has_come = True

    def check(self) -> None:
        """Return while the session may go on.

        Raises:
            KeyboardInterrupt: it may not.
        """
        if self.has_come:
            raise KeyboardInterrupt
