"""Collects, in the process that trains, what its loaders' workers hand over."""

import os
from collections.abc import Callable, Iterable
from typing import Final

from training_profiler.loader_workers.mailbox import Mailbox
from training_profiler.recording.data_loader import LoaderCounts
from training_profiler.recording.worker_sums import WorkerSums, added
from training_profiler.safety.background_thread import BackgroundThread
from training_profiler.safety.fault_guard import Guard

PART: Final = "loader workers"
READ_S: Final = 2.0  # between two readings
PATIENCE_S: Final = 1.0  # at the end, for the last reading
MOST_FILES: Final = 64  # of one loader; older workers are summed up and not read again


class _Workers:
    """The workers of one loader, by their process numbers in the order of their start."""

    def __init__(self, counts: LoaderCounts) -> None:
        self.counts = counts
        self._earlier = WorkerSums()
        self._latest: dict[int, WorkerSums | None] = {}

    def add(self, workers: Iterable[int]) -> None:
        for worker in workers:
            self._latest.setdefault(worker, None)

    def read(self, mailbox: Mailbox) -> None:
        for worker in list(self._latest):
            self._latest[worker] = mailbox.read(worker) or self._latest[worker]
        while len(self._latest) > MOST_FILES:
            oldest = self._latest.pop(next(iter(self._latest)))
            self._earlier = added([self._earlier, oldest or WorkerSums()])
        known = [sums for sums in self._latest.values() if sums is not None]
        if known or self._earlier.workers:
            self.counts.use_workers(added([self._earlier, *known]))


class WorkerCollector:
    """Makes the folder for workers before the first of them starts, and reads it on a thread of its own."""

    def __init__(self, guard: Guard, mailbox: Callable[[], Mailbox] = lambda: Mailbox(os.getpid())) -> None:
        self._guard, self._make_mailbox = guard, mailbox
        self._is_on = False
        self._mailbox: Mailbox | None = None
        self._loaders: dict[int, _Workers] = {}  # by the loader's id
        self._thread: BackgroundThread | None = None
        self._has_failed = False

    def start(self, is_on: bool) -> None:
        """Let workers that start from now on hand over figures, or not."""
        self._is_on = is_on

    def expect(self) -> None:
        """Prepare for workers that are about to start; called on the training thread."""
        if not self._is_on or self._mailbox is not None or self._has_failed:
            return
        mailbox = self._make_mailbox()
        self._has_failed = not mailbox.make()
        if self._has_failed:
            return
        self._mailbox = mailbox
        self._thread = BackgroundThread("workers", self._run, self._guard, PART)
        self._guard(PART, self._thread.start)

    def add(self, counts: LoaderCounts, workers: Iterable[int]) -> None:
        """Take these processes as workers of the loader of ``counts``."""
        if self._mailbox is not None:
            self._loaders.setdefault(counts.loader_id, _Workers(counts)).add(workers)

    def _run(self, thread: BackgroundThread) -> None:
        if self._mailbox is not None:
            self._mailbox.remove_left_over()
        while not thread.wait_for_stop(READ_S):
            self.read()
        self.read()

    def read(self) -> None:
        """Read what all workers have handed over so far."""
        mailbox = self._mailbox
        if mailbox is not None:
            for workers in list(self._loaders.values()):
                workers.read(mailbox)

    def close(self) -> None:
        """Read a last time, wait for that at most ``PATIENCE_S``, and remove the folder."""
        thread, self._thread = self._thread, None
        self._is_on = False
        if thread is not None:
            thread.stop()
            thread.join(PATIENCE_S)
        mailbox, self._mailbox = self._mailbox, None
        self._loaders.clear()
        if mailbox is not None:
            mailbox.remove()

    def after_fork_in_child(self) -> None:
        """Leave the folder to the process that made it."""
        self._thread = self._mailbox = None
        self._is_on = False
        self._loaders = {}

    def notes(self) -> list[str]:
        """Return a sentence on the cost in the workers, or on why nothing is known of them."""
        if self._has_failed:
            return [f"{PART}: not observed, the folder for temporary files has no room for a private one"]
        return []
