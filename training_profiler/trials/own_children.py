"""Stops the processes that a training has started, from the moment when its block ends to that when the next begins."""

import signal
from contextlib import suppress

import psutil


class OwnChildren:
    """The processes that this process has started, and those that they have started."""

    def __init__(self) -> None:
        self._known: list[psutil.Process] = []

    def stop(self) -> bool:
        """Stop all of them; return whether they are known, so that ``resume`` lets them go on.

        The session stops them as well, but only once it has received the block: workers would make batches meanwhile.
        """
        _send(signal.SIGSTOP, self._known)  # looking for them takes a while
        try:
            self._known = psutil.Process().children(recursive=True)
        except (psutil.Error, OSError):
            return False
        _send(signal.SIGSTOP, self._known)
        return True

    def resume(self) -> None:
        """Let them go on, those too that were started before the session stopped this process."""
        with suppress(psutil.Error, OSError):  # looking for them takes a while, in which none of them runs
            self._known = psutil.Process().children(recursive=True)
        _send(signal.SIGCONT, self._known)


def _send(number: int, processes: list[psutil.Process]) -> None:
    for process in processes:
        with suppress(psutil.Error, OSError):  # it has ended
            process.send_signal(number)
