"""Stops the processes that a training has started, at the moment when its block ends."""

import os
import signal
from contextlib import suppress

import psutil


class OwnChildren:
    """The processes that this process has started, and those that they have started."""

    def __init__(self) -> None:
        self._stopped: list[int] = []

    def stop(self) -> None:
        """Stop all of them. The session stops them as well, but only once it has received the block."""
        with suppress(psutil.Error, OSError):
            self._stopped = [child.pid for child in psutil.Process().children(recursive=True)]
        self._send(signal.SIGSTOP)

    def resume(self) -> None:
        """Let those that were stopped go on."""
        self._send(signal.SIGCONT)
        self._stopped = []

    def _send(self, number: int) -> None:
        for pid in self._stopped:
            with suppress(OSError):  # it has ended
                os.kill(pid, number)
