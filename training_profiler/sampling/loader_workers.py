"""Collects, in the process that trains, what its loaders' workers hand over, and how it waits for them."""

import os
import re
import stat
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import msgspec

from training_profiler.base.units import NS_PER_S, time_text
from training_profiler.model.loader_workers import SamplePrints, WorkerSums, added, fit_sums, repeats_among
from training_profiler.recording.data_loader import LoaderCounts
from training_profiler.safety.fault_guard import WORKERS, BackgroundThread, Guard, Pace, unlimited
from training_profiler.safety.files import read_file, replace_file
from training_profiler.sampling.batch_phases import PINS
from training_profiler.sampling.frames import StackOfThread, outwards
from training_profiler.sampling.line_sampler import GOLDEN, JITTER

MOST_FILE_BYTES: Final = 1 << 18  # 30 lines of long paths take a tenth
LEFT_OVER_S: Final = 86_400.0  # without a change, of a process that was killed
_PREFIX: Final = "training_profiler-workers"
_FILE: Final = re.compile(r"\d{1,10}\.json(\.part)?")


class Mailbox:
    """The folder through which workers hand their figures to the process that trains: one small file a worker.

    It is named after the ``pid`` of that process, which a worker knows with every way to start one. Only its owner can
    write in it. A worker replaces its file; the training's process reads it and removes the folder at the end.
    """

    def __init__(self, pid: int, parent: str | Path | None = None) -> None:
        self.folder = Path(parent or tempfile.gettempdir()) / f"{_PREFIX}-{_user()}-{pid}"

    def make(self) -> bool:
        """Make the folder, empty; return whether workers may write in it."""
        try:
            self.folder.mkdir(mode=0o700)
        except FileExistsError:
            self._empty()  # left over by a process of the same number
        except OSError:
            return False
        return self.is_safe()

    def is_safe(self) -> bool:
        """Return whether the folder is there, and this user's alone."""
        try:
            status = os.lstat(self.folder)
        except OSError:
            return False
        is_private = status.st_uid == _user() and not status.st_mode & (stat.S_IRWXG | stat.S_IRWXO)
        return stat.S_ISDIR(status.st_mode) and is_private

    def write(self, worker: int, sums: WorkerSums) -> None:
        """Replace what this worker, by its process number, has handed over.

        Raises:
            OSError: it cannot be written.
        """
        replace_file(self.folder / f"{worker}.json", msgspec.json.encode(sums))

    def read(self, worker: int) -> WorkerSums | None:
        """Return what a worker has handed over last; None if there is nothing that can be used."""
        try:
            data = read_file(self.folder / f"{worker}.json", MOST_FILE_BYTES)
            return fit_sums(msgspec.json.decode(data, type=WorkerSums))
        except (OSError, ValueError):
            return None

    def _empty(self) -> None:
        with suppress(OSError):
            for name in os.listdir(self.folder) if self.is_safe() else ():
                if _FILE.fullmatch(name):
                    (self.folder / name).unlink(missing_ok=True)

    def remove(self) -> None:
        """Remove the folder and what workers wrote in it."""
        self._empty()
        with suppress(OSError):  # not ours, or it holds files of others
            self.folder.rmdir()

    def remove_left_over(self) -> None:
        """Remove folders of this user's trainings that were killed."""
        with suppress(OSError, ValueError):
            for folder in self.folder.parent.glob(f"{_PREFIX}-{_user()}-*"):
                if time.time() - os.lstat(folder).st_mtime > LEFT_OVER_S:
                    Mailbox(int(folder.name.rpartition("-")[2]), folder.parent).remove()


def _user() -> int | None:
    return os.geteuid() if hasattr(os, "geteuid") else None


PART: Final = "loader workers"
READ_S: Final = 2.0  # between two readings
LOOK_S: Final = 0.1  # between two samples of the training's waiting
MAKING_S: Final = 0.2  # longest wait for the folder, once: its disk may not respond
PATIENCE_S: Final = 1.0  # at the end, for the last reading
MOST_FILES: Final = 64  # of one loader; older workers are summed up and not read again
_PIN_MEMORY: Final = "/torch/utils/data/_utils/pin_memory.py"
_UNPACKS: Final = "/torch/multiprocessing/reductions.py"


class _Workers:
    """The workers of one loader, by their process numbers in the order of their start."""

    def __init__(self, counts: LoaderCounts) -> None:
        self.counts = counts
        self._earlier = WorkerSums()
        self._latest: dict[int, WorkerSums | None] = {}
        self._of_pass: list[int] = []  # those started last
        self._repeats = repeats_among(())  # of the latest pass of which enough is known
        self._waiting: Any = Counter(waits=0, held=0, pin_waits=0, pinning=0)  # as WorkerSums has them

    def add(self, workers: Iterable[int]) -> None:
        self._of_pass = list(workers)
        for worker in self._of_pass:
            self._latest.setdefault(worker, None)

    def sample(self, is_held: bool | None, is_pinned: bool | None) -> None:
        self._waiting.update(waits=is_held is not None, held=is_held or 0)
        self._waiting.update(pin_waits=is_pinned is not None, pinning=is_pinned or 0)

    def read(self, mailbox: Mailbox) -> None:
        for worker in list(self._latest):
            self._latest[worker] = mailbox.read(worker) or self._latest[worker]
        while len(self._latest) > MOST_FILES:
            oldest = self._latest.pop(next(iter(self._latest)))
            self._earlier = added([self._earlier, oldest or WorkerSums()])
        known = [sums for sums in self._latest.values() if sums is not None]
        if known or self._earlier.workers:
            of_pass = [self._latest.get(worker) or WorkerSums() for worker in self._of_pass]
            self._repeats = repeats_among([sums.prints or SamplePrints() for sums in of_pass]) or self._repeats
            waiting = WorkerSums(**self._waiting, repeats=self._repeats)
            self.counts.use_workers(added([self._earlier, *known, waiting]))


Awaited = Callable[[], tuple[LoaderCounts, Any] | None]  # the loader, and its iterator


class WorkerCollector:
    """Makes the folder for workers before the first of them starts, and reads it on a thread of its own.

    ``awaited`` returns the loader and the iterator that the training waits for just now; None if it does not wait.
    """

    def __init__(
        self,
        guard: Guard,
        awaited: Awaited = lambda: None,
        mailbox: Callable[[], Mailbox] = lambda: Mailbox(os.getpid()),
        pace: Pace | None = None,
    ) -> None:
        self._pace = pace or unlimited(WORKERS)
        self._guard, self._awaited, self._make_mailbox = guard, awaited, mailbox
        self._is_on = False
        self._mailbox: Mailbox | None = None
        self._loaders: dict[int, _Workers] = {}  # by the loader's id
        self._thread: BackgroundThread | None = None
        self._has_failed = False
        self._is_decided: threading.Event | None = None  # whether the folder could be made
        self._done = WorkerSums()  # of all loaders, at the end

    def start(self, is_on: bool) -> None:
        """Let workers that start from now on hand over figures, or not."""
        self._is_on = is_on

    def expect(self) -> None:
        """Prepare for workers that are about to start; called on the training thread."""
        if self._is_on and self._thread is None and not self._has_failed:
            self._guard(PART, self._open)

    def _open(self) -> None:
        mailbox, is_decided = self._make_mailbox(), threading.Event()
        thread = BackgroundThread("workers", lambda thread: self._run(thread, mailbox, is_decided), self._guard, PART)
        thread.start()
        self._thread, self._is_decided = thread, is_decided
        is_decided.wait(MAKING_S)

    def add(self, counts: LoaderCounts, workers: Iterable[int]) -> None:
        """Register these PIDs as workers of the loader."""
        if self._thread is not None and not self._has_failed:
            self._loaders.setdefault(counts.loader_id, _Workers(counts)).add(workers)

    def _run(self, thread: BackgroundThread, mailbox: Mailbox, is_decided: threading.Event) -> None:
        self._has_failed = not mailbox.make()
        self._mailbox = None if self._has_failed else mailbox
        is_decided.set()
        if not self._has_failed:
            try:
                mailbox.remove_left_over()
                self._read_until_stopped(thread)
            finally:
                mailbox.remove()

    def _read_until_stopped(self, thread: BackgroundThread) -> None:
        phase, until_read_s = 0.5, READ_S
        while not thread.wait_for_stop(
            pause_s := self._pace.pause_s(LOOK_S, thread.cpu_ns) * (1 + JITTER * (2 * phase - 1))
        ):
            phase, until_read_s = (phase + GOLDEN) % 1, until_read_s - pause_s
            self.sample()
            if until_read_s <= 0:
                until_read_s = READ_S
                self.read()
        self.read()

    def sample(self) -> None:
        """Note whether the training waits, and for what: later batches that are ready, or the thread that pins them."""
        awaited = self._awaited()
        workers = None if awaited is None else self._loaders.get(awaited[0].loader_id)
        if awaited is not None and workers is not None:
            workers.sample(has_later_batches(awaited[1]), is_pinned(awaited[1]))

    def read(self) -> None:
        """Read what all workers have handed over so far."""
        mailbox = self._mailbox
        if mailbox is not None:
            for workers in list(self._loaders.values()):
                workers.read(mailbox)

    def close(self) -> None:
        """Let the thread read a last time and remove the folder; wait for that at most ``PATIENCE_S``."""
        thread, self._thread = self._thread, None
        self._is_on = False
        if thread is not None:
            thread.stop()
            thread.join(PATIENCE_S)
        self._mailbox = None
        self._done = self._so_far()
        self._loaders.clear()

    def after_fork_in_child(self) -> None:
        """Leave the folder to the process that made it."""
        self._thread = self._mailbox = self._is_decided = None
        self._is_on = False
        self._loaders = {}

    def notes(self) -> list[str]:
        """Return a sentence on the cost in the workers, or on why nothing is known of them."""
        if self._has_failed:
            return [f"{PART}: not observed, the folder for temporary files has no room for a private one"]
        if self._is_decided is not None and not self._is_decided.is_set():
            return [f"{PART}: not observed, the folder for temporary files does not respond"]
        sums = self._so_far() if self._loaders else self._done
        if not sums.wall_ns:
            return []
        cost_s, share = sums.sampling_ns / NS_PER_S, sums.sampling_ns / sums.wall_ns
        return [f"{PART}: {sums.samples} samples, {time_text(cost_s)} of CPU ({share:.2%} of their time)"]

    def _so_far(self) -> WorkerSums:
        known = [workers.counts.workers for workers in list(self._loaders.values())]
        return added(sums for sums in known if sums is not None)


def has_later_batches(iterator: Any) -> bool | None:
    """Return whether batches are ready that come after the one which a loader's iterator waits for.

    It is None if that one is ready, too, if the order does not matter, or without torch's account of them (private).
    """
    try:
        if not iterator._in_order or len(iterator._task_info[iterator._rcvd_idx]) != 1:
            return None
        unreturned = iterator._send_idx - iterator._rcvd_idx
        return bool(unreturned > iterator._tasks_outstanding)
    except (AttributeError, KeyError, TypeError):
        return None


def is_pinned(iterator: Any) -> bool | None:
    """Return whether the pin-memory thread of a loader's iterator unpacks or copies a batch; None without one."""
    ident = getattr(getattr(iterator, "_pin_memory_thread", None), "ident", None)  # private: may be gone
    frame = None if ident is None else StackOfThread(ident).frame()
    if frame is None:
        return None
    for each in outwards(frame):
        path, name = each.f_code.co_filename.replace("\\", "/"), each.f_code.co_name
        if path.endswith(_UNPACKS) or (path.endswith(_PIN_MEMORY) and name == PINS):
            return True
    return False
