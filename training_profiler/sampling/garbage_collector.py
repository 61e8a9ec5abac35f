"""Times the pauses of Python's garbage collector."""

import gc
import threading
import time
from collections.abc import Mapping

from training_profiler.units import NS_PER_S


class GarbageTimer:
    """Adds up the pauses that begin on the training thread. Python calls it at both ends of each."""

    def __init__(self) -> None:
        self.count = 0
        self._ns = self._began_ns = 0
        self._thread: int | None = None

    def start(self) -> None:
        """Begin to listen, once."""
        if self._collects not in gc.callbacks:
            gc.callbacks.append(self._collects)

    def sample_this_thread(self) -> None:
        """Count the pauses of the calling thread from now on."""
        self._thread = threading.get_ident()

    @property
    def seconds(self) -> float:
        """All pauses so far."""
        return self._ns / NS_PER_S

    def _collects(self, phase: str, info: Mapping[str, int]) -> None:
        if threading.get_ident() != self._thread:
            return
        if phase == "start":
            self._began_ns = time.perf_counter_ns()
        elif self._began_ns:
            self._ns += time.perf_counter_ns() - self._began_ns
            self._began_ns = 0
            self.count += 1

    def close(self) -> None:
        """Stop listening."""
        if self._collects in gc.callbacks:
            gc.callbacks.remove(self._collects)

    def after_fork_in_child(self) -> None:
        """Stop listening: the pauses of a forked child are its own."""
        self.close()
