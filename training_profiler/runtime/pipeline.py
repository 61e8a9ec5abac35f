"""From the recorder to the reports: drain, add up, write the journal, publish to rank 0, report."""

import multiprocessing
import sys
from collections.abc import Sequence
from typing import Final

from training_profiler.aggregation.loaders import interval_stats
from training_profiler.aggregation.totals import Totals
from training_profiler.base.units import NS_PER_S
from training_profiler.diagnosis import diagnose
from training_profiler.instrumentation.loop_detection.epoch_detector import EpochBoundary
from training_profiler.ranks.summary import RankSummary
from training_profiler.recording.recorder import MAX_MARKS
from training_profiler.runtime.parts import Parts
from training_profiler.runtime.shutdown import waited_for_children
from training_profiler.safety.cost_budget import EPOCHS, REPORTS, SHARE
from training_profiler.sampling.cpu_speed import budget_s, measure
from training_profiler.settings.settings import Settings
from training_profiler.sinks.sink import MetricRow
from training_profiler.snapshot.program import CpuSpeed, ProgramFacts
from training_profiler.snapshot.snapshot import PROFILER, Health, Snapshot

STEPS_MOVE_FROM: Final = 10  # batches of an epoch; of fewer, one more step is many


class Pipeline:
    """Drains the recorder, adds up, writes the journal, publishes to rank 0, and reports. Not thread-safe.

    Keeps the sums of the run, of the interval since the last report, and of the epoch.
    """

    def __init__(self, settings: Settings, parts: Parts) -> None:
        self.has_reported = self._is_closing = False
        self._has_flushed = False  # other than early
        self.loaders = parts.loaders
        self._parts = parts
        self._recorder, self._progress, self._instrumentation = parts.recorder, parts.progress, parts.instrumentation
        self._accumulator, self._sums = parts.accumulator, parts.sums
        self._samplers, self._captures = parts.samplers, parts.captures
        self._exchange, self._outputs = parts.exchange, parts.outputs
        self._guard, self._health_of_profiler = parts.guard, parts.health
        self._settings = settings
        self._cpu: CpuSpeed | None = None
        self._apply(settings)

    def start(self) -> None:
        """Open the outputs, unless the training is awaited."""
        if not self._progress.is_awaited:
            self._outputs.start()

    def reconfigure(self, settings: Settings) -> None:
        """Apply new settings."""
        self._apply(settings)
        self._outputs.reconfigure(settings)

    def _apply(self, settings: Settings) -> None:
        self._settings = settings
        self._accumulator.loaders.configure_intervals(bool(settings.sinks), settings.log_scalars_every_n_steps)
        self._accumulator.reconfigure(settings.warmup)
        self._sums.reconfigure(settings.warmup)
        self._exchange.reconfigure(settings)

    @property
    def is_rank_known(self) -> bool:
        """Whether this process knows which rank it is."""
        return self._parts.rank.is_certain or self._progress.steps > 0

    def begin_training(self) -> None:
        """Share the run folder with the other ranks and start the trackers. Called before the first step ends."""
        if self._progress.is_awaited:
            self._progress.stop_waiting()
            self._outputs.start()
        self._parts.rank.detect_process_group()
        if self._parts.rank.is_one_of_many():
            self._outputs.open_journal()
            self._exchange.start()
        self._outputs.start_trackers()
        self.announce()

    def announce(self) -> None:
        """Print that the profiler is on, once something is measured and the run folder is known."""
        self._guard.run("console", self._outputs.announce)

    @property
    def covered_ns(self) -> int:
        """Until when the run is summed up; later events may still be rewritten."""
        return self._accumulator.at_ns

    def has_room(self) -> bool:
        """Return whether the accumulator can take more steps before a flush."""
        return len(self._accumulator.step_ns) <= MAX_MARKS

    def is_blocked(self) -> bool:
        """Return whether a drain must wait for the end of the current step."""
        return self._recorder.is_blocked_at(self._accumulator.at_ns)

    def drain(self, is_beside: bool = False) -> None:
        """Add up the events recorded since the last drain."""
        batch, garbage = self._recorder.drain(is_beside), self._samplers.garbage
        self._accumulator.add_collections(garbage.pop(), garbage.since_ns)
        samples, has_mark = self._samplers.lines.pop_samples(), self._instrumentation.marks_loop
        self._accumulator.add(batch, self._progress.thread_id, samples, has_mark)
        self._samplers.add_to(self._accumulator)
        self._send_loader_rows()

    def _send_loader_rows(self, is_last: bool = False) -> None:
        for row in self._accumulator.loaders.pop_intervals(is_last):
            self._outputs.loader_row(row.step, interval_stats(row, self.loaders.all))

    def flush(self, is_beside: bool = False, is_early: bool = False) -> None:
        """Drain, write the journal's next line, and publish to rank 0.

        Args:
            is_beside: whether this is not the training thread, which may be in the middle of a step.
            is_early: whether the run has just begun, and may turn out not to be a training.
        """
        self.drain(is_beside)
        if self._is_awaited():
            return
        synchronized = self._exchange.drain_gradient_sync(self._accumulator)
        totals, step_ns = self._accumulator.pop_totals()
        totals.batches, totals.samples = self.loaders.drain_interval()
        totals.tokens = self._progress.drain_tokens()
        flops, work = self._instrumentation.flops, self._instrumentation.pop_work()
        totals.flops, totals.slow_steps = flops.counted, flops.slow_steps
        totals.with_grad = work.with_grad_count, work.with_grad_ns
        for step, elements in work.input_sizes:
            totals.input_sizes.add(step, elements)
        self._sums.add(totals, step_ns)
        self._has_flushed |= not is_early
        if not is_beside and not self._is_closing:
            self.announce()
        inside = self._open_sections()
        self._journal_interval(totals, step_ns, inside, is_beside)
        self._guard.run("recorded steps", lambda: self._journal_spans(step_ns, is_beside))
        self._exchange.add(totals, step_ns, synchronized)
        self._publish(self._exchange.due_summary(self._sums.run, inside=inside), polls=not is_beside)
        if is_beside and self._recorder.watermark_ns is not None:
            self._guard.run("pending intervals", self._journal_pending)

    def _is_awaited(self) -> bool:
        """Return whether the training is awaited. Gradients alone may be a child's that serves the training."""
        if self._instrumentation.has_trained and multiprocessing.parent_process() is None:
            self._progress.stop_waiting()
        return self._progress.is_awaited

    def _journal_interval(
        self, totals: Totals, step_ns: list[int], inside: Sequence[str], is_beside: bool, is_pending: bool = False
    ) -> None:
        device, program, health = self._samplers.device.stats(), self._program(), self.health()
        self._outputs.journal(
            lambda lines: lines.interval(
                totals, step_ns, health, self.loaders.all, inside, device, program, is_pending=is_pending
            ),
            polls=not is_beside,
        )

    def _journal_spans(self, step_ns: Sequence[int], is_beside: bool) -> None:
        steps = self._accumulator.step_spans.pop(step_ns, is_last=self._is_closing)
        steps = [step.with_lanes(self._samplers.device.lanes_of(step.bounds.number)) for step in steps]
        if steps:
            self._outputs.journal(lambda lines: lines.spans(steps), polls=not is_beside)

    def _journal_pending(self) -> None:
        """Write what the training thread may still rewrite: a reader uses it if nothing follows."""
        preview = self._accumulator.preview()
        preview.add(self._recorder.peek(), self._progress.thread_id, has_loop_mark=self._instrumentation.marks_loop)
        totals, step_ns = preview.pop_totals()
        inside = preview.open_sections(self._progress.thread_id)
        self._journal_interval(totals, step_ns, inside, is_beside=True, is_pending=True)

    def _open_sections(self) -> tuple[str, ...]:
        return self._accumulator.open_sections(self._progress.thread_id)

    def _publish(self, summary: RankSummary | None, polls: bool = True) -> None:
        if summary is not None:
            data = summary.to_data()
            self._outputs.journal(lambda lines: lines.rank(data), polls)
            self._exchange.publish(data, summary.is_final)

    def report(self) -> None:
        """Print and send the interval since the last report."""
        self.flush()
        if self._outputs.is_primary():
            self._outputs.periodic(self._interval())
            self._exchange.new_interval()
        self._sums.new_interval()

    def send_interval(self, tracker: str | None = None) -> None:
        """Send the metrics since the last report to one tracker or to all."""
        self._outputs.interval_row(self._interval(), tracker)

    def pop_rows(self) -> list[MetricRow]:
        """Return the rows since the last call, for the program's own loggers. The first call returns none."""
        return self._outputs.pop_rows()

    def _interval(self) -> Snapshot:
        return self._sums.snapshot(
            self.health(),
            of_interval=True,
            device=self._samplers.device.stats(),
            ranks=self._exchange.stats(self._sums.run, of_interval=True),
            exchange=self._exchange.gradient_sync_stats(),
            thresholds=self._settings.thresholds,
            price=self._settings.gpu_hour_price,
        )

    def begin_epoch(self, number: int) -> None:
        """Begin the sums of an epoch."""
        self.flush()
        self.loaders.begin_epoch()
        self._sums.begin_epoch(number)
        self._outputs.journal(lambda lines: lines.epoch_begin(number))

    def end_epoch(self, is_complete: bool) -> None:
        """End the epoch and report it."""
        self.flush()
        self._end_epoch(*self.loaders.epoch_counts(), is_complete)

    def _end_epoch(self, batches: int | None, samples: int | None, is_complete: bool) -> None:
        if self._sums.is_in_epoch:
            self._outputs.journal(lambda lines: lines.epoch_end(batches, samples, is_complete))
            stats = self._sums.end_epoch(batches, samples, is_complete)
            if stats is not None:
                self._outputs.epoch(stats, self._sums.steps)

    def roll_over_epoch(self, boundary: EpochBoundary | None) -> None:
        """End the inferred epoch and begin the next at ``boundary``. None discards the epoch."""
        if boundary is None:
            self._sums.discard_epoch()
            return
        self.flush()
        self._end_inferred_epoch(boundary.batches, boundary.samples, is_complete=True)
        self._sums.begin_epoch(boundary.number)
        self._outputs.journal(lambda lines: lines.epoch_begin(boundary.number))

    def _end_inferred_epoch(self, batches: int | None, samples: int | None, is_complete: bool) -> None:
        # More steps than batches: batches were used more than once, so this was not a pass. One more is none, where the
        # update that ends a step became that of another optimizer in an epoch before.
        moved = 1 if batches is not None and batches >= STEPS_MOVE_FROM else 0
        if batches is not None and self._sums.epoch_steps > batches + moved:
            self._sums.discard_epoch()
        else:
            self._end_epoch(batches, samples, is_complete)

    def _end_last_epoch(self) -> None:
        epochs = self._instrumentation.epochs
        if epochs.current is None:
            self.end_epoch(is_complete=False)
            return
        last = epochs.last()
        if last is None:
            self._sums.discard_epoch()
        else:
            self._end_inferred_epoch(*last)

    def close(self, ended_by: str | None) -> None:
        """Report on the finished run."""
        try:
            self._guard.run("final summary", lambda: self._close(ended_by))
        finally:
            self._outputs.stop()

    def _close(self, ended_by: str | None) -> None:
        self._is_closing = True
        self._close_patches()
        if self._has_nothing():
            self._outputs.discard()
            return  # the bootstrap reports once why nothing was measured
        self.has_reported = True
        self._guard.run("cost of a section", self._health_of_profiler.measure_again)
        self._guard.run("CPU speed", lambda: self._measure_cpu(ended_by))
        self._guard.run("statistics", self.flush)  # after a failure the earlier totals are still reported
        self._outputs.settle()  # a capture asks for the run folder
        self._guard.run("capture", self._captures.wait_for_file)
        if self._sums.is_in_epoch:
            self._end_last_epoch()
        self._guard.run("trackers", lambda: self._send_loader_rows(is_last=True))
        self._guard.run("ranks", lambda: self._publish_last(ended_by))
        if not self._outputs.is_primary():
            self._outputs.close(self.health, ended_by)  # may find the run folder, which the channel then uses
            self._exchange.close()
            return
        self._exchange.close()
        self.send_interval()
        self._outputs.final(lambda: self.stats(ended_by), diagnose(self.stats(ended_by)), self.health)

    def _has_nothing(self) -> bool:
        """Return whether there is nothing to report, or only the time in which this process waited for its children."""
        if self._is_awaited():
            return True
        if self._progress.steps or self._instrumentation.has_trained:
            return False
        if not self._progress.uses_api and not self._has_flushed:
            return True
        if self._progress.uses_api:
            self._guard.run("statistics", self.flush)
            if self._sums.run.training_spans:
                return False
            if waited_for_children():
                self._outputs.say_only_waited()
                return True
        return self._outputs.has_run_of_child()

    def _close_patches(self) -> None:
        self._guard.run("patches", self._instrumentation.close)
        for note in self._instrumentation.notes():
            self._health_of_profiler.add_note(note)

    def _publish_last(self, ended_by: str | None) -> None:
        inside = self._open_sections()
        self._publish(self._exchange.final_summary(self._sums.run, inside=inside, ended_by=ended_by))

    def settle(self, patience_s: float) -> None:
        """Wait until everything is written, at most ``patience_s`` without progress."""
        self._outputs.settle(patience_s)

    def before_fork(self) -> None:
        """Prepare for a fork of the process."""
        self._outputs.before_fork()

    def after_fork_in_parent(self) -> None:
        """Go on after a fork."""
        self._outputs.after_fork_in_parent()

    def after_fork_in_child(self) -> None:
        """Drop trackers and channel: they belong to the parent process."""
        self._outputs.after_fork_in_child()
        self._exchange.after_fork_in_child()

    def notes(self) -> list[str]:
        """Return what the profiler costs, and a sentence on the epochs without figures."""
        notes = self._parts.budget.notes()
        missing, number = self._epochs_refused()
        if number:
            notes.append(
                f"{missing} of {number} epochs have no figures: at this pace the profiler would cost over {SHARE:.1%} "
                f"of the run"
            )
        if clear := self._clear_epochs():
            notes.append(
                f"only the first {clear} epoch{'s' * (clear > 1)} are known: batches came from another data loader "
                f"afterwards; profile_epoch() marks epochs"
            )
        return notes

    def stats(self, ended_by: str | None = None) -> Snapshot:
        """Return the statistics of the run up to the last flush."""
        return self._sums.snapshot(
            self.health(),
            loaders=self.loaders.all,
            device=self._samplers.device.stats(),
            program=self._program(),
            open_sections=self._open_sections(),
            run_folder=self._outputs.run_folder,
            ended_by=ended_by,
            ranks=self._exchange.stats(self._sums.run),
            exchange=self._exchange.gradient_sync_stats(),
            attempts=self._outputs.attempts,
            thresholds=self._settings.thresholds,
            price=self._settings.gpu_hour_price,
        )

    def show_so_far(self) -> None:
        """Print the final summary as it would be now."""
        if self._outputs.is_primary():
            snapshot = self.stats()
            self._outputs.show_so_far(snapshot, diagnose(snapshot))

    def report_files(self) -> dict[str, str]:
        """Return the final report up to the last flush, as the texts of its files by their names."""
        snapshot = self.stats()
        return self._outputs.report_files(snapshot, diagnose(snapshot))

    def _program(self) -> ProgramFacts:
        """Return the facts of the program so far."""
        return self._samplers.with_observed(self._instrumentation.program_facts())._replace(
            cpu=self._cpu, epochs=self._epochs_refused()[1], unclear_after=self._clear_epochs()
        )

    def _clear_epochs(self) -> int:
        """Return how many epochs ended before passes over other loaders made it unclear what one is; 0 without such."""
        return self._instrumentation.epochs.unclear_after

    def _epochs_refused(self) -> tuple[int, int]:
        """Return how many epochs have no figures, for what they would cost, and of how many; zeros where all have."""
        if not self._parts.budget.pace(EPOCHS).refused:
            return 0, 0
        number = self._instrumentation.epochs.number
        return number - len(self._sums.epochs) - self._sums.is_in_epoch, number

    def _measure_cpu(self, ended_by: str | None) -> None:
        """Measure what the CPU can do, unless the run was short, interrupted, or not on the CPU."""
        torch, counted = sys.modules.get("torch"), self._sums.run.flops
        seconds = budget_s(self._sums.run.wall_ns / NS_PER_S)
        if torch is None or counted is None or counted.device or ended_by is not None or not seconds:
            return
        with self._recorder.own_section(PROFILER):
            self._cpu = measure(torch, counted.dtype, seconds)

    def health(self) -> Health:
        """Return the health of the profiler so far."""
        components = (self._samplers, self._outputs, self._exchange, self)
        notes = [note for component in components for note in component.notes()]
        is_unseen = self._settings.is_quiet and not self._settings.sinks
        left_out = 0 if is_unseen else self._parts.budget.pace(REPORTS).refused
        return self._health_of_profiler.health(self._sums.run, left_out, notes)
