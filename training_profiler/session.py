"""The composition root: wires recorder, sums, reports and run folder, from start to the final summary."""

import sys
import threading
import time
from collections.abc import Callable
from typing import Final

from training_profiler.diagnosis import diagnose, epoch_warnings
from training_profiler.exits import Exits
from training_profiler.record.loader import LoaderCounts
from training_profiler.record.names import printable
from training_profiler.record.recorder import EPOCH_BEGIN, EPOCH_END, MAX_MARKS, STEP_END, Recorder
from training_profiler.record.section import FLUSH_AT_MOST
from training_profiler.reports.console import render_epoch, render_final, render_periodic
from training_profiler.reports.contract import as_data
from training_profiler.runs.run_files import RunFiles
from training_profiler.settings import Settings
from training_profiler.sinks.console import Console
from training_profiler.snapshot import PROFILER, Health, Snapshot
from training_profiler.statistics.accumulator import Accumulator
from training_profiler.statistics.run import RunSums
from training_profiler.units import NS_PER_S
from training_profiler.upkeep import Budget, Upkeep

OVERFULL: Final = 4 * FLUSH_AT_MOST  # integers in a thread's buffer
PATIENCE_S: Final = 1.0  # for another thread that is just draining, which takes it milliseconds
WAIT_FOR_DRAIN_S: Final = 5.0  # at the end, for another thread that is just draining


class Session:
    """One profiled run, from ``start`` to ``finish``.

    Any thread may record; the one that holds ``_busy`` drains and reports. Nobody waits for it: who
    finds it taken comes back at the next full buffer or step.
    """

    def __init__(self, recorder: Recorder, settings: Settings, section_cost_ns: float = 0.0) -> None:
        self.settings = settings
        self.is_running = False
        self._loaders: dict[int | str, LoaderCounts] = {}
        self.upkeep = Upkeep(recorder, section_cost_ns)
        self._recorder = recorder
        self._busy = threading.Lock()
        self._busy_thread: int | None = None
        self._waiting = 0  # threads that wait for _busy
        self._begin_ns = recorder.clock()
        self._accumulator = Accumulator(recorder.names, self._begin_ns, settings.warmup)
        self._sums = RunSums(recorder.names, self._begin_ns, settings.warmup)
        self._console = Console(settings.stream)
        self._budget = Budget(recorder.clock)
        self._files = RunFiles(settings, recorder.names, self._begin_ns)
        self._exits = Exits(self.finish)
        self._training_thread = recorder.thread_serial()
        self._steps_marked = 0
        self._next_report = settings.log_every
        self._next_flush_ns = self._begin_ns + self._flush_ns
        self._ended_by: str | None = None
        self._epoch_counts: tuple[int, int | None] = (0, 0)

    def start(self, opens_files: bool = True) -> None:
        """Begin to listen to the recorder; open the run folder now, or when there is something to write."""
        self._recorder.discard()
        self._recorder.names.limit = self.settings.max_names
        self._recorder.on_full = self._on_full
        self._recorder.is_listened_to = True
        self._exits.arm()
        self.is_running = True
        if opens_files:
            self._with_files(self._open_files)

    def adopt(self, settings: Settings) -> None:
        """Go on with other settings: a session that a section began, and that is now started by name."""
        self.settings = self._files.settings = settings
        self._recorder.names.limit = settings.max_names
        self._console = Console(settings.stream)
        self._accumulator.warmup_steps = self._sums.warmup_steps = settings.warmup
        self._next_report = self._steps_marked + settings.log_every
        self._next_flush_ns = self._recorder.clock() + self._flush_ns
        self._exits.arm()  # the section that began the run may have been on another thread
        self._with_files(self._open_files)

    def step(self) -> None:
        """End a training step; report and flush where it is time."""
        self._take_training_thread()
        now_ns = self._recorder.mark(STEP_END)
        self._steps_marked += 1
        if self._steps_marked >= self._next_report:
            self._next_report += self.settings.log_every
            if self._budget.allows():
                self._exclusively(self._report, PATIENCE_S)
        elif now_ns >= self._next_flush_ns or len(self._recorder.marks) > MAX_MARKS:
            self._on_full()

    def begin_epoch(self, number: int) -> None:
        """Begin an epoch on the calling thread."""
        self._take_training_thread()
        self._recorder.mark(EPOCH_BEGIN)
        self._exclusively(lambda: self._begin_epoch(number), PATIENCE_S)

    def end_epoch(self, is_complete: bool) -> None:
        """End the epoch under way and print its summary."""
        self._recorder.mark(EPOCH_END)
        self._exclusively(lambda: self._end_epoch(is_complete), PATIENCE_S)

    def loader_counts(self, loader: object, name: str | None) -> LoaderCounts:
        """Return the counts of a loader: those it has already where it is profiled anew each epoch."""
        key = id(loader) if name is None else printable(str(name))
        if key not in self._loaders:
            self._loaders[key] = LoaderCounts(str(len(self._loaders)) if name is None else str(key))
        return self._loaders[key]

    @property
    def loaders(self) -> list[LoaderCounts]:
        """The counts of all loaders profiled so far."""
        return list(self._loaders.values())

    def snapshot(self) -> Snapshot:
        """Return the figures of the run so far."""
        self._exclusively(self._flush, PATIENCE_S)
        return self._figures()

    def finish(self, ended_by: str | None = None) -> bool:
        """Print the final summary and close the run folder, once.

        Returns:
            False where a signal interrupted this very thread at its drain or at the final summary. What
            it interrupted then finishes the session and ends the process as soon as it is through.
        """
        if self._busy_thread == threading.get_ident():
            self._ended_by = ended_by
            return False
        is_free = self._busy.acquire(timeout=WAIT_FOR_DRAIN_S)  # also for another thread's final summary
        self._busy_thread = threading.get_ident()
        try:
            if self.is_running:
                self.is_running = False
                self.upkeep.guard("final summary", lambda: self._finish(ended_by))
        finally:
            self._recorder.on_full = self._recorder.discard
            self._exits.disarm()
            self._busy_thread = None
            if is_free:
                self._busy.release()
        if self._ended_by is not None:
            self._exits.die()
        return True

    def abandon(self) -> None:
        """Forget the run without a word: in a forked child it is the parent's."""
        self.is_running = False
        self._exits.disarm()  # a worker stuck in C must die of SIGTERM at once, as it would without us
        self._recorder.on_full = self._recorder.discard

    @property
    def _flush_ns(self) -> int:
        return int(self.settings.flush_s * NS_PER_S)

    def _take_training_thread(self) -> None:
        if not self._steps_marked:
            self._training_thread = self._recorder.thread_serial()

    def _on_full(self) -> None:
        # A thread that records faster than others can drain has to wait for them, or memory had no bound.
        patience_s = PATIENCE_S if self._recorder.backlog() > OVERFULL else 0.0
        is_due = self._recorder.clock() >= self._next_flush_ns or len(self._accumulator.step_ns) > MAX_MARKS
        self._exclusively(self._flush if is_due else self._drain, patience_s)

    def _exclusively(self, work: Callable[[], None], patience_s: float = 0.0) -> None:
        """Do ``work`` unless another thread drains; wait ``patience_s`` for that one at most."""
        if self._busy_thread == threading.get_ident():  # a signal handler, or a finalizer, in the middle of a drain
            return
        if not patience_s and self._waiting:  # let them pass, or busy threads would take turns for ever
            return
        self._waiting += patience_s > 0
        is_free = self._busy.acquire(timeout=patience_s)
        self._waiting -= patience_s > 0
        if not is_free:
            return
        self._busy_thread = threading.get_ident()
        begin_ns = self._recorder.clock()
        try:
            with self._recorder.section(PROFILER):
                if self.is_running:
                    self.upkeep.guard("statistics", work)
        finally:
            if self._recorder.thread_serial() == self._training_thread:  # others do this beside the training
                self.upkeep.spent_ns += self._recorder.clock() - begin_ns
            self._busy_thread = None
            self._busy.release()
        if self._ended_by is not None:
            self.finish(self._ended_by)

    def _drain(self) -> None:
        self._accumulator.add(self._recorder.drain(), self._training_thread)

    def _flush(self) -> None:
        self._drain()
        totals, step_ns = self._accumulator.take_totals()
        self._sums.add(totals, step_ns)
        self._next_flush_ns = self._recorder.clock() + self._flush_ns
        inside = self._accumulator.open_sections(self._training_thread)
        self._with_files(
            lambda: self._files.open().write_interval(totals, step_ns, self._health(), self.loaders, inside)
        )

    def _report(self) -> None:
        begin_ns = time.thread_time_ns()  # of this thread: what other work on the machine costs is not ours
        self._flush()
        snapshot = self._sums.snapshot(self._health(), of_interval=True)
        self._print(render_periodic(snapshot, self.settings.format))
        self._sums.new_interval()
        self._budget.spend(time.thread_time_ns() - begin_ns)

    def _begin_epoch(self, number: int) -> None:
        self._flush()
        self._epoch_counts = self._loader_counts()
        self._sums.begin_epoch(number)
        self._with_files(lambda: self._files.open().write_epoch_begin(number))

    def _end_epoch(self, is_complete: bool) -> None:
        self._flush()
        batches, samples = self._epoch_loader_counts()
        self._with_files(lambda: self._files.open().write_epoch_end(batches, samples, is_complete))
        figures = self._sums.end_epoch(batches, samples, is_complete)
        if figures is not None:
            self._print(render_epoch(figures, epoch_warnings(figures)))

    def _loader_counts(self) -> tuple[int, int | None]:
        samples = [counts.training_samples for counts in self.loaders]
        known = [count for count in samples if count is not None]
        batches = sum(counts.training_batches for counts in self.loaders)
        return batches, sum(known) if len(known) == len(samples) else None

    def _epoch_loader_counts(self) -> tuple[int | None, int | None]:
        batches, samples = self._loader_counts()
        batches_before, samples_before = self._epoch_counts
        if batches == batches_before:
            return None, None
        known = samples is not None and samples_before is not None
        return batches - batches_before, samples - samples_before if known else None  # type: ignore[operator]

    def _finish(self, ended_by: str | None) -> None:
        self.upkeep.guard("statistics", self._flush)  # should it fail, what was summed up before is still told
        if self._sums.is_in_epoch:
            self._end_epoch(is_complete=False)
        snapshot = self._figures(ended_by)
        insights = diagnose(snapshot)
        self._print(render_final(snapshot, insights, self.settings.format))
        snapshot = self._figures(ended_by)  # printing may have failed: the files shall say so
        text = render_final(snapshot, insights, self.settings.format)
        self._with_files(lambda: self._files.write_report(text, as_data(snapshot, insights)))
        self._with_files(lambda: self._files.close(self._health(), ended_by))

    def _figures(self, ended_by: str | None = None) -> Snapshot:
        folder = self._files.folder
        return self._sums.snapshot(
            self._health(),
            loaders=self.loaders,
            open_sections=self._accumulator.open_sections(self._training_thread),
            run_folder=None if folder is None else str(folder),
            ended_by=ended_by,
        )

    def _health(self) -> Health:
        return self.upkeep.health(self._sums.run, self._budget.left_out)

    def _is_primary(self) -> bool:
        distributed = sys.modules.get("torch.distributed")
        if distributed is not None and distributed.is_available() and distributed.is_initialized():
            return bool(distributed.get_rank() == 0)
        return self.settings.rank == 0

    def _print(self, text: str) -> None:
        if self._is_primary():
            self.upkeep.guard("console", lambda: self._console.print(text))

    def _open_files(self) -> None:
        self._files.open()

    def _with_files(self, work: Callable[[], None]) -> None:
        if self._is_primary():
            self.upkeep.guard("run folder", work)
