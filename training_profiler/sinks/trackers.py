"""The trackers of a run. Each has its own thread, so none can delay the training or another tracker."""

import importlib
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Final

from training_profiler.base.errors import MissingExtraError
from training_profiler.base.trackers import TRACKERS
from training_profiler.base.units import NS_PER_S, counted
from training_profiler.safety.fault_guard import BackgroundThread, Guard, warn
from training_profiler.settings.settings import Settings
from training_profiler.sinks.metrics import Metrics
from training_profiler.sinks.sink import MetricRow, Sink, SinkContext

MOST_ROWS: Final = 1000  # waiting for one tracker
MOST_AT_ONCE: Final = 100
FREE_S: Final = 0.2  # CPU time that a thread may use before its share counts
FREQUENT_SHARE: Final = 0.001  # of the run; the training waits while the thread holds the GIL
NOTHING: Final = None  # wakes the thread without a row


class TrackerThread:
    """The queue and the thread of one sink. ``folder`` is called on the thread, and may wait for a disk."""

    def __init__(self, sink: Sink, guard: Guard, folder: Callable[[], Path | None]) -> None:
        self.sink = sink
        self.dropped = 0
        self.spared = 0  # frequent rows left out because they would cost too much
        self.part = f"{sink.name} sink"
        self.has_given_up = False
        self._guard = guard
        # Its put() may be interrupted by itself.
        self._rows: SimpleQueue[MetricRow | threading.Event | None] = SimpleQueue()
        self._is_closing = False
        self._begin_s = time.monotonic()
        self._spent_s = 0.0
        part = f"{self.part} thread"
        self._thread = BackgroundThread(sink.name, lambda thread: self._run(thread, folder), guard, part)
        self._thread.start()

    @property
    def cpu_ns(self) -> int:
        """CPU time of the thread, in ns."""
        return self._thread.cpu_ns

    def poll(self) -> None:
        """Poll the sink on the calling thread, and wake its own thread if there is something to do."""
        if self.sink.poll():
            self._rows.put(NOTHING)

    def can_afford(self) -> bool:
        """Return whether a frequent row may be written; count it as left out if not."""
        if self._spent_s <= FREE_S + FREQUENT_SHARE * (time.monotonic() - self._begin_s):
            return True
        self.spared += 1
        return False

    def send(self, row: MetricRow) -> None:
        """Queue a row, or count it as dropped; never waits."""
        if self._rows.qsize() >= MOST_ROWS:
            self.dropped += 1
        else:
            self._rows.put(row)

    def flush(self, timeout_s: float) -> None:
        """Wait until all queued rows are written, at most ``timeout_s``."""
        if not self._thread.is_current():
            written = threading.Event()
            self._rows.put(written)
            written.wait(timeout_s)

    def end(self) -> None:
        """Let the thread end once it has written all queued rows."""
        if not self._is_closing:
            self._is_closing = True
            self._rows.put(NOTHING)

    def wait(self, until_s: float) -> bool:
        """Wait for the thread until a time of the monotonic clock; return whether it has ended."""
        return self._thread.join(max(0.0, until_s - time.monotonic()))

    def give_up(self) -> None:
        """Stop waiting for the sink; count its queued rows as dropped."""
        self.has_given_up = True
        with suppress(Empty):
            while True:
                self.dropped += isinstance(self._rows.get_nowait(), MetricRow)
        self._rows.put(NOTHING)  # wakes the thread; an earlier one may be gone

    def notes(self) -> list[str]:
        """Return sentences on rows that did not reach the tracker."""
        notes = self.sink.notes()
        dropped = counted(self.dropped, "row")
        if self.has_given_up:
            notes.append(f"{self.part}: did not come to its end, at least {dropped} not written")
        elif self.dropped:
            notes.append(f"{self.part}: {dropped} left out, for it was slower than they came")
        if self.spared:
            notes.append(
                f"{self.part}: {counted(self.spared, 'row')} of data loaders left out, more would cost over "
                f"{FREQUENT_SHARE:.1%} of the run; raise log_scalars_every_n_steps"
            )
        return notes

    def _run(self, thread: BackgroundThread, folder: Callable[[], Path | None]) -> None:
        # Each call has its own guard. After a failure, later rows are dropped here.
        self._guard(self.part, lambda: self.sink.open(folder()))
        thread.measure_cpu()
        opened_ns = thread.cpu_ns
        while not (self._is_closing and self._rows.empty()):
            self._write_some()
            thread.measure_cpu()
            self._spent_s = (thread.cpu_ns - opened_ns) / NS_PER_S
        self._guard(self.part, self.sink.close)

    def _write_some(self) -> None:
        items = [self._rows.get()]
        with suppress(Empty):
            while sum(isinstance(item, MetricRow) for item in items) < MOST_AT_ONCE:
                items.append(self._rows.get_nowait())
        rows = [item for item in items if isinstance(item, MetricRow)]
        self._guard(self.part, lambda: self.sink.write(rows))
        for item in items:
            if isinstance(item, threading.Event):
                item.set()


PATIENCE_S: Final = 3.0  # for all trackers together, at the end
FLUSH_S: Final = 2.0  # for queued rows, when the program ends its own run of a tracker


class Trackers:
    """Sends rows of metrics to the chosen sinks; costs nothing without any.

    Args:
        guard: does work; a failure disables that part alone.
        last_row: sends a row since the last one to the tracker of this name. The program ends that tracker's run before
            ours is over.
        report: returns the report on the run so far, as the texts of files by their names.
        sinks: makes a sink by its name; tests pass their own.
    """

    def __init__(
        self,
        guard: Guard,
        last_row: Callable[[str], None] = lambda name: None,
        report: Callable[[], dict[str, str]] = dict,
        sinks: Callable[[str], Sink] | None = None,
    ) -> None:
        self._guard = guard
        self._last_row, self._report = last_row, report
        self._make = sinks or (lambda name: _class_of(name)())
        self._writers: dict[str, TrackerThread] = {}
        self._ended: list[TrackerThread] = []
        self._starting = threading.Lock()

    @property
    def cpu_ns(self) -> int:
        """CPU time of all threads that write to trackers, in ns."""
        return sum(writer.cpu_ns for writer in [*self._writers.values(), *self._ended])

    def prepare(self, names: Sequence[str]) -> None:
        """Import the modules of these sinks now, not at the interpreter's end. Their packages are imported later."""
        for name in names:
            _class_of(name)

    def choose(self, names: Sequence[str], folder: Callable[[], Path | None], settings: Settings | None = None) -> None:
        """Start the sinks with these names that do not run yet, and end all others."""
        settings = settings or Settings()
        if self._writers.keys() == set(names) or not self._starting.acquire(blocking=False):
            return
        try:
            for name in self._writers.keys() - set(names):
                self._ended.append(self._writers.pop(name))
                self._ended[-1].end()
            for name in names:
                if name not in self._writers:
                    sink = self._make(name)
                    sink.connect(self._context(name, settings))
                    self._writers[name] = TrackerThread(sink, self._guard, folder)
        finally:
            self._starting.release()

    def poll(self) -> None:
        """Poll each sink on the calling thread for runs of its tracker that the program has begun."""
        for writer in list(self._writers.values()):
            self._guard(writer.part, writer.poll)

    def send(
        self, step: int, metrics: Callable[[], Metrics], only: str | None = None, is_frequent: bool = False
    ) -> None:
        """Queue a row for each tracker, or for one, without waiting; ``metrics`` is called if there is a tracker.

        Frequent rows may come with every step. Each tracker writes as many as cost little.
        """
        writers = [writer for name, writer in list(self._writers.items()) if only in (None, name)]
        if is_frequent:
            writers = [writer for writer in writers if writer.can_afford()]
        else:
            self.poll()
        if writers:
            row = MetricRow(step, time.time(), metrics())
            for writer in writers:
                writer.send(row)

    def end(self) -> None:
        """Accept no more rows."""
        self._ended += self._writers.values()
        self._writers = {}
        for writer in self._ended:
            writer.end()

    def wait(self, patience_s: float, is_last: bool) -> None:
        """Wait for the sinks to end; after the last wait, stop waiting for those that have not."""
        until_s = time.monotonic() + patience_s
        for writer in self._ended:
            if not writer.wait(until_s) and is_last:
                writer.give_up()

    def after_fork_in_child(self) -> None:
        """Drop the threads: a forked child has none."""
        for writer in (*self._writers.values(), *self._ended):
            writer.sink.after_fork_in_child()
        self._writers, self._ended = {}, []
        self._starting = threading.Lock()

    def notes(self) -> list[str]:
        """Return sentences on rows that did not reach a tracker."""
        return [note for writer in (*self._ended, *self._writers.values()) for note in writer.notes()]

    def _context(self, name: str, settings: Settings) -> SinkContext:
        def flush() -> None:
            self._last_row(name)
            writer = self._writers.get(name)
            if writer is not None:
                writer.flush(FLUSH_S)

        return SinkContext(lambda work: self._guard(f"{name} sink", work), flush, settings, self._report)


def _class_of(name: str) -> Callable[[], Sink]:
    # Imported when chosen: most runs have no tracker and must not wait for imports.
    module = importlib.import_module(f"training_profiler.sinks.{TRACKERS[name].module}")
    sink: Callable[[], Sink] = getattr(module, TRACKERS[name].sink)
    return sink


def with_installed_sinks(settings: Settings) -> Settings:
    """Return the settings with the trackers whose packages are installed; imports none of them.

    Raises:
        MissingExtraError: a package is missing, and trackers are not optional.
    """
    kept = []
    for name in settings.sinks:
        tracker = TRACKERS.get(name)
        try:
            is_missing = tracker is not None and tracker.needs is not None and find_spec(tracker.needs) is None
        except (ImportError, ValueError):  # a module without a spec was imported under this name
            is_missing = False
        if tracker is not None and is_missing:
            error = MissingExtraError(
                f"The {name} sink needs {tracker.package}: pip install 'training-profiler[{tracker.extra}]', "
                f"or pip install {tracker.package}"
            )
            if not settings.sinks_optional:
                raise error
            warn(f"left out: {error}", has_traceback=False)
        else:
            kept.append(name)
    return settings if len(kept) == len(settings.sinks) else replace(settings, sinks=tuple(kept))
