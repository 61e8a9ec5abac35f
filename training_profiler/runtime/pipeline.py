"""From the recorder to the reports: drain, add up, write the journal, publish to rank 0, report."""

import multiprocessing
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, NamedTuple

from training_profiler.aggregation.accumulator import Accumulator
from training_profiler.aggregation.run import RunSums
from training_profiler.aggregation.totals import Totals
from training_profiler.base.units import NS_PER_S
from training_profiler.diagnosis import Finding, diagnose
from training_profiler.instrumentation.loop_detection.step_detector import EpochBoundary
from training_profiler.model.program import CpuSpeed, ProgramFacts
from training_profiler.model.snapshot import PROFILER, Health, Snapshot
from training_profiler.ranks.channel import RankChannel
from training_profiler.ranks.exchange import RankExchange
from training_profiler.ranks.identity import rank_of
from training_profiler.ranks.summary import RankSummary
from training_profiler.recording.data_loader import LoaderRegistry
from training_profiler.recording.recorder import Recorder, TrainingProgress
from training_profiler.runtime.hang_watch import HangWatch
from training_profiler.runtime.health import ProfilerHealth, budget_s, measure, measure_section_cost_ns
from training_profiler.runtime.instrumentation import Instrumentation
from training_profiler.runtime.outputs import Outputs
from training_profiler.runtime.parts import Samplers
from training_profiler.runtime.shutdown import PlannedEnd, waited_for_children
from training_profiler.runtime.terminal import Terminal
from training_profiler.safety.fault_guard import EPOCHS, REPORTS, SHARE, CostBudget, FaultGuard
from training_profiler.sampling.line_sampler import StartupSampler
from training_profiler.settings.settings import Settings
from training_profiler.torch_capture.controller import Captures

STEPS_MOVE_FROM: Final = 10  # batches of an epoch; of fewer, one more step is many


@dataclass(frozen=True)
class RunContext:
    """The parameters of a session that its process knows."""

    recorder: Recorder
    section_cost_ns: float  # of an empty section on this machine
    begin_ns: int  # when the run began, by the recorder's clock
    opens_files: bool  # whether the run folder is created at the start; otherwise the first output creates it
    instrumentation: Instrumentation  # infers sections and steps of an unmodified training
    awaits_training: bool = False  # whether nothing is written before the process trains or uses the API
    startup: StartupSampler | None = None  # has sampled lines since the import of torch
    flushes_beside: bool = False  # whether a thread flushes by time; unit tests flush by their own clock


class SessionCalls(NamedTuple):
    """What parts ask of their session while it runs."""

    flush_beside: Callable[[], float]
    flush_soon: Callable[[], None]
    send_last_row: Callable[[str], None]
    report_files: Callable[[], dict[str, str]]


class Pipeline:
    """The parts of a run, connected, and what is done with them. Not thread-safe.

    Keeps the sums of the run, of the interval since the last report, and of the epoch.
    """

    def __init__(self, settings: Settings, context: RunContext, session: SessionCalls) -> None:
        recorder, begin_ns = context.recorder, context.begin_ns
        names, clock = recorder.names, recorder.clock
        self.recorder, self.instrumentation = recorder, context.instrumentation
        self.guard, self.rank, self.loaders = FaultGuard(), rank_of(settings), LoaderRegistry()
        progress = self.progress = TrainingProgress(recorder.thread_id(), context.awaits_training)
        accumulator = self.accumulator = Accumulator(names, begin_ns, settings.warmup, has_inferred=True)
        self.sums = RunSums(names, begin_ns, settings.warmup)
        # Measured on the thread beside the training, which wants the CPU, or Python's lock, as well.
        measure_cost = partial(measure_section_cost_ns, recorder.implementation, spent=time.thread_time_ns)
        self.profiler_health = ProfilerHealth(
            recorder,
            context.section_cost_ns,
            self.guard,
            patched_spans=lambda: (accumulator.inferred_filter.spans, self.instrumentation.repeated_calls),
            measure=measure_cost if context.flushes_beside else None,
        )
        self.terminal = Terminal(self.rank, self.guard, self.profiler_health, settings.stream, progress)
        self._connect_ranks(settings, begin_ns)
        self.outputs = Outputs(
            settings,
            context.opens_files,
            self.rank,
            self.guard,
            self.terminal,
            self.exchange,
            names=names,
            begin_ns=begin_ns,
            tick=session.flush_beside if context.flushes_beside else None,
            last_row=session.send_last_row,
            report=session.report_files,
        )
        self.hang_watch = HangWatch(
            recorder,
            accumulator,
            self.channel,
            self.rank,
            self.guard.run,
            progress=progress,
            outputs=self.outputs,
            report=self.terminal.report,
            began_wall_ns=time.time_ns() - (clock() - begin_ns),
        )
        self._connect_samplers(settings, context, session.flush_soon)
        self.has_reported = self._is_closing = False
        self._has_flushed = False  # other than early
        self._cpu: CpuSpeed | None = None
        self.planned_end = PlannedEnd(self.rank, self.channel, clock, begin_ns, self.terminal.report)
        self._apply(settings)

    def _connect_ranks(self, settings: Settings, begin_ns: int) -> None:
        self.channel = RankChannel(
            self.rank,
            settings.rank_wait_s,
            settings.launch.has_agent_store,
            self.guard.run,
            heartbeat=lambda: self.hang_watch.detector.heartbeat(),
            on_messages=lambda messages: self.exchange.read_ahead(messages),
            stacks=lambda: self.hang_watch.attached(),
        )
        patches = self.instrumentation.context
        self.exchange = RankExchange(
            self.rank,
            self.channel,
            self.recorder.names,
            self.recorder.clock,
            self.guard.run,
            gradient_sync=patches.gradient_sync,
            sync_points=patches.sync_points,
            trained_samples=patches.trained_samples.record,
            begin_ns=begin_ns,
        )

    def _connect_samplers(self, settings: Settings, context: RunContext, flush_soon: Callable[[], None]) -> None:
        recorder, begin_ns = self.recorder, context.begin_ns
        self.budget = CostBudget(recorder.clock, begin_ns, self._costs(context.startup))
        self.reports, self.epochs = self.budget.pace(REPORTS), self.budget.pace(EPOCHS)
        self.samplers = Samplers(
            settings,
            recorder,
            self.accumulator,
            self.guard.run,
            self.budget.pace,
            begin_ns=begin_ns,
            startup=context.startup,
            awaited=self.instrumentation.awaited,
            spend=self.profiler_health.spend,
        )
        self.captures = Captures(
            recorder.clock,
            self.guard.run,
            self.accumulator,
            recorder.names.names,
            settings.capture,
            run_as_overhead=self.profiler_health.run_as_overhead,
            place=self.outputs.location,
            read_soon=self.outputs.read_soon,
            report=self.terminal.report,
            ask_flush=flush_soon,
        )

    def _costs(self, startup: StartupSampler | None) -> dict[str, Callable[[], float]]:
        """Return functions that return the CPU time so far of each part that cannot wait, in ns."""
        return {
            "startup sampler": lambda: 0.0 if startup is None else startup.cpu_ns,
            "sections and patches": lambda: self.profiler_health.sections_ns(self.sums.run),
            "collecting": lambda: self.profiler_health.collecting_ns,
            **self.outputs.costs(),
            "other ranks": lambda: self.channel.cpu_ns,
            "hangs": lambda: self.hang_watch.cpu_ns,
        }

    def start(self) -> None:
        """Open the outputs, unless the training is awaited."""
        if not self.progress.is_awaited:
            self.outputs.start()

    def reconfigure(self, settings: Settings) -> None:
        """Apply new settings."""
        self._apply(settings)
        self.outputs.reconfigure(settings)

    def _apply(self, settings: Settings) -> None:
        self._settings = settings
        self.accumulator.loaders.configure_intervals(bool(settings.sinks), settings.log_scalars_every_n_steps)
        self.accumulator.reconfigure(settings.warmup)
        self.sums.reconfigure(settings.warmup)
        self.exchange.reconfigure(settings)
        self.planned_end.reconfigure(settings)

    def begin_training(self) -> None:
        """Share the run folder with the other ranks and start the trackers. Called before the first step ends."""
        if self.progress.is_awaited:
            self.progress.stop_waiting()
            self.outputs.start()
        self.rank.detect_process_group()
        if self.rank.is_one_of_many():
            self.outputs.open_journal()
            self.exchange.start()
        self.outputs.start_trackers()
        self.guard.run("console", self.outputs.announce)

    def drain(self, is_beside: bool = False) -> None:
        """Add up the events recorded since the last drain."""
        batch, garbage = self.recorder.drain(is_beside), self.samplers.garbage
        self.accumulator.add_collections(garbage.pop(), garbage.since_ns)
        samples, has_mark = self.samplers.lines.pop_samples(), self.instrumentation.marks_loop
        self.accumulator.add(batch, self.progress.thread_id, samples, has_mark)
        self.samplers.add_to(self.accumulator)
        self._send_loader_rows()

    def _send_loader_rows(self, is_last: bool = False) -> None:
        for row in self.accumulator.loaders.pop_intervals(is_last):
            self.outputs.loader_row(row.step, row.stats(self.loaders.all))

    def flush(self, is_beside: bool = False, is_early: bool = False) -> None:
        """Drain, write the journal's next line, and publish to rank 0.

        ``is_beside`` is on a thread beside the training's, which may be in the middle of a step. A run where it
        ``is_early`` may turn out not to be a training.
        """
        self.drain(is_beside)
        if self._is_awaited():
            return
        synchronized = self.exchange.drain_gradient_sync(self.accumulator)
        totals, step_ns = self.accumulator.pop_totals()
        totals.batches, totals.samples = self.loaders.drain_interval()
        flops, work = self.instrumentation.flops, self.instrumentation.pop_work()
        totals.tokens = self.progress.drain_tokens() if self.progress.counts_tokens else work.tokens
        totals.flops, totals.slow_steps, totals.with_grad = flops.counted, flops.slow_steps, work[:2]
        totals.named_steps = self.instrumentation.early_steps.named_steps
        for step, elements in work.input_sizes:
            totals.input_sizes.add(step, elements)
        self.sums.add(totals, step_ns)
        self._has_flushed |= not is_early
        if not is_beside and not self._is_closing:
            self.guard.run("console", self.outputs.announce)
        inside = self.accumulator.open_sections(self.progress.thread_id)
        self._journal_interval(totals, step_ns, inside, is_beside)
        self.guard.run("recorded steps", lambda: self._journal_spans(step_ns, is_beside))
        self.exchange.add(totals, step_ns, synchronized)
        self._publish(self.exchange.due_summary(self.sums.run, inside=inside), polls=not is_beside)
        if is_beside and self.recorder.watermark_ns is not None:
            self.guard.run("pending intervals", self._journal_pending)

    def _is_awaited(self) -> bool:
        """Return whether the training is awaited. Gradients alone may be a child's that serves the training."""
        if self.instrumentation.has_trained and multiprocessing.parent_process() is None:
            self.progress.stop_waiting()
        return self.progress.is_awaited

    def _journal_interval(
        self, totals: Totals, step_ns: list[int], inside: Sequence[str], is_beside: bool, is_pending: bool = False
    ) -> None:
        device, program, health = self.samplers.device.stats(), self._program(), self.health()
        self.outputs.journal(
            lambda lines: lines.interval(
                totals,
                step_ns,
                health,
                self.loaders.all,
                open_sections=inside,
                device=device,
                program=program,
                is_pending=is_pending,
            ),
            polls=not is_beside,
        )

    def _journal_spans(self, step_ns: Sequence[int], is_beside: bool) -> None:
        steps = self.accumulator.step_spans.pop(step_ns, is_last=self._is_closing)
        lanes = {step.number: self.samplers.device.lanes_of(step.number) for step in steps}
        if steps:
            self.outputs.journal(lambda lines: lines.spans(steps, lanes), polls=not is_beside)

    def _journal_pending(self) -> None:
        """Write what the training thread may still rewrite: a reader uses it if nothing follows."""
        preview = self.accumulator.preview()
        preview.add(self.recorder.peek(), self.progress.thread_id, has_loop_mark=self.instrumentation.marks_loop)
        totals, step_ns = preview.pop_totals()
        inside = preview.open_sections(self.progress.thread_id)
        self._journal_interval(totals, step_ns, inside, is_beside=True, is_pending=True)

    def _publish(self, summary: RankSummary | None, polls: bool = True) -> None:
        if summary is not None:
            data = summary.to_data()
            self.outputs.journal(lambda lines: lines.rank(data), polls)
            self.exchange.publish(data, summary.is_final)

    def report(self) -> None:
        """Print and send the interval since the last report."""
        self.flush()
        if self.rank.is_primary():
            self.outputs.periodic(self._snapshot(of_interval=True), self.stats)
            self.exchange.new_interval()
        self.sums.new_interval()

    def send_interval(self, tracker: str | None = None) -> None:
        """Send the metrics since the last report to one tracker or to all."""
        self.outputs.interval_row(self._snapshot(of_interval=True), tracker)

    def begin_epoch(self, number: int) -> None:
        """Begin the sums of an epoch."""
        self.flush()
        self.loaders.begin_epoch()
        self.sums.begin_epoch(number)
        self.outputs.journal(lambda lines: lines.epoch_begin(number))

    def end_epoch(self, is_complete: bool) -> None:
        """End the epoch and report it."""
        self.flush()
        self._end_epoch(*self.loaders.epoch_counts(), is_complete, is_marked=True)

    def _end_epoch(self, batches: int | None, samples: int | None, is_complete: bool, *, is_marked: bool) -> None:
        if self.sums.is_in_epoch:
            self.outputs.journal(lambda lines: lines.epoch_end(batches, samples, is_complete))
            stats = self.sums.end_epoch(batches, samples, is_complete)
            if stats is not None:
                self.outputs.epoch(stats, self.sums.steps, is_marked)

    def roll_over_epoch(self, boundary: EpochBoundary | None) -> None:
        """End the inferred epoch and begin the next at ``boundary``. None discards the epoch."""
        if boundary is None:
            self.sums.discard_epoch()
            return
        self.flush()
        self._end_inferred_epoch(boundary.batches, boundary.samples, is_complete=True)
        self.sums.begin_epoch(boundary.number)
        self.outputs.journal(lambda lines: lines.epoch_begin(boundary.number))

    def _end_inferred_epoch(self, batches: int | None, samples: int | None, is_complete: bool) -> None:
        # More steps than batches: batches were used more than once, so this was not a pass. One more is none, where the
        # update that ends a step became that of another optimizer in an epoch before.
        moved = 1 if batches is not None and batches >= STEPS_MOVE_FROM else 0
        if batches is not None and self.sums.epoch_steps > batches + moved:
            self.sums.discard_epoch()
        else:
            self._end_epoch(batches, samples, is_complete, is_marked=False)

    def _end_last_epoch(self) -> None:
        epochs = self.instrumentation.epochs
        if epochs.current is None:
            self.end_epoch(is_complete=False)
            return
        last = epochs.last()
        if last is None:
            self.sums.discard_epoch()
        else:
            self._end_inferred_epoch(*last)

    def close(self, ended_by: str | None) -> None:
        """Report on the finished run."""
        try:
            self.guard.run("final summary", lambda: self._close(ended_by))
        finally:
            self.outputs.stop()

    def _close(self, ended_by: str | None) -> None:
        self._is_closing = True
        self.guard.run("error", lambda: self.profiler_health.keep_error(ended_by, self.instrumentation.read_site))
        self.guard.run("patches", self.instrumentation.close)
        for note in self.instrumentation.notes():
            self.profiler_health.notes.append(note)
        if self._has_nothing():
            self.outputs.discard()
            return  # the bootstrap reports once why nothing was measured
        self.has_reported = True
        self.guard.run("CPU speed", lambda: self._measure_cpu(ended_by))
        self.guard.run("statistics", self.flush)  # after a failure the earlier totals are still reported
        self.outputs.settle()  # a capture asks for the run folder
        self.guard.run("capture", self.captures.wait_for_file)
        if self.sums.is_in_epoch:
            self._end_last_epoch()
        self.guard.run("trackers", lambda: self._send_loader_rows(is_last=True))
        last = partial(self.exchange.final_summary, self.sums.run, ended_by=ended_by)
        self.guard.run(
            "ranks", lambda: self._publish(last(inside=self.accumulator.open_sections(self.progress.thread_id)))
        )
        ended_by = ended_by or self.planned_end.ended_by
        if not self.rank.is_primary():
            self.outputs.close(self.health, ended_by)  # may find the run folder, which the channel then uses
        self.exchange.close()
        if self.rank.is_primary():
            self.send_interval()
            self.outputs.look_back(self.sums, self.stats(ended_by))
            findings: list[Finding] = []  # none if a rule fails: the figures are still reported
            self.guard.run("findings", lambda: findings.extend(diagnose(self.stats(ended_by))))
            self.outputs.final(lambda: self.stats(ended_by), findings, self.health)

    def _has_nothing(self) -> bool:
        """Return whether there is nothing to report, or only the time in which this process waited for its children."""
        if self._is_awaited():
            return True
        if self.progress.steps or self.instrumentation.has_trained:
            return False
        if not (self.progress.uses_api or self._has_flushed):
            return True
        if self.progress.uses_api:
            self.guard.run("statistics", self.flush)
            if self.sums.run.training_spans:
                return False
            if waited_for_children():
                self.outputs.say_only_waited()
                return True
        return self.outputs.has_run_of_child()

    def after_fork_in_child(self) -> None:
        """Drop trackers and channel: they belong to the parent process."""
        self.outputs.after_fork_in_child()
        self.channel.after_fork_in_child()

    def notes(self) -> list[str]:
        """Return what the profiler costs, and a sentence on the epochs without figures."""
        notes, (missing, number) = self.budget.notes(), self._epochs_refused()
        if number:
            why = f"at this pace the profiler would cost over {SHARE:.1%} of the run"
            notes.append(f"{missing} of {number} epochs have no figures: {why}")
        if clear := self.instrumentation.epochs.unclear_after:
            why = "batches came from another data loader afterwards; profile_epoch() marks epochs"
            notes.append(f"only the first {clear} epoch{'s' * (clear > 1)} are known: {why}")
        return notes

    def stats(self, ended_by: str | None = None) -> Snapshot:
        """Return the statistics of the run up to the last flush."""
        return self._snapshot(
            loaders=self.loaders.all,
            open_sections=self.accumulator.open_sections(self.progress.thread_id),
            run_folder=self.outputs.run_folder,
            ended_by=ended_by,
            attempts=self.outputs.attempts,
        )

    def _snapshot(self, of_interval: bool = False, **of_run: Any) -> Snapshot:
        return self.sums.snapshot(
            self.health(),
            of_interval=of_interval,
            program=self._program(),
            device=self.samplers.device.stats(),
            ranks=self.exchange.stats(self.sums.run, of_interval=of_interval),
            gradient_sync=self.exchange.gradient_sync_stats(),
            thresholds=self._settings.thresholds,
            price=self._settings.gpu_hour_price,
            **of_run,
        )

    def first_finding(self) -> tuple[int, str | None]:
        """Return after how many steps the figures are, up to the last flush, and the code of the first finding."""
        snapshot = self.stats()
        return snapshot.steps, next((finding.code for finding in diagnose(snapshot)), None)

    def report_cell(self) -> None:
        """Report, up to the last flush, on a cell of a notebook that has ended."""
        if self.rank.is_primary() and self.outputs.cell(self._snapshot(of_interval=True), self.stats):
            self.exchange.new_interval()
            self.sums.new_interval()

    def report_files(self) -> dict[str, str]:
        """Return the final report up to the last flush, as the texts of its files by their names."""
        snapshot = self.stats()
        return self.outputs.report_files(snapshot, diagnose(snapshot))

    def _program(self) -> ProgramFacts:
        return (facts := self.instrumentation.program_facts())._replace(
            has_token_ids=facts.has_token_ids and not self.progress.counts_tokens,
            compiled=self.samplers.compilations.facts(),
            cpu=self._cpu,
            epochs=self._epochs_refused()[1],
            unclear_after=self.instrumentation.epochs.unclear_after,
        )

    def _epochs_refused(self) -> tuple[int, int]:
        """Return how many epochs have no figures, for what they would cost, and of how many; zeros where all have."""
        if not self.epochs.refused:
            return 0, 0
        number = self.instrumentation.epochs.number
        return number - len(self.sums.epochs) - self.sums.is_in_epoch, number

    def _measure_cpu(self, ended_by: str | None) -> None:
        """Measure what the CPU can do, unless the run was short, interrupted, or not on the CPU."""
        torch, counted = sys.modules.get("torch"), self.sums.run.flops
        seconds = budget_s(self.sums.run.wall_ns / NS_PER_S)
        if torch and counted and not counted.device and ended_by is None and seconds:
            with self.recorder.own_section(PROFILER):
                self._cpu = measure(torch, counted.dtype, seconds)

    def health(self) -> Health:
        """Return the health of the profiler so far."""
        notes = [note for each in (self.samplers, self.outputs, self.exchange, self) for note in each.notes()]
        left_out = 0 if self._settings.is_quiet and not self._settings.sinks else self.reports.refused
        looked_ns = self.instrumentation.early_steps.looked_ns
        return self.profiler_health.health(self.sums.run, left_out, notes, self._settings.asks_for_reports, looked_ns)
