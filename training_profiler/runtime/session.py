"""The composition root: wires recorder, sums, reports and run folder, from start to the final summary."""

import threading
import time
from collections.abc import Callable
from typing import Final

from training_profiler.instrumentation.flops.counter import COUNTED_BY
from training_profiler.instrumentation.instrumentation import Instrumentation
from training_profiler.instrumentation.loop_detection.epoch_detector import EpochBoundary
from training_profiler.instrumentation.rank_patches import RankPatches
from training_profiler.recording.dynamo import without_tracing
from training_profiler.recording.event_codes import EPOCH_BEGIN, EPOCH_END, STEP_END
from training_profiler.recording.recorder import MAX_MARKS, Recorder
from training_profiler.recording.section import FLUSH_AT_MOST
from training_profiler.runtime.health import PATCH_COST, Budget, ProfilerHealth
from training_profiler.runtime.outputs import Outputs
from training_profiler.runtime.pipeline import Pipeline
from training_profiler.runtime.shutdown import Shutdown
from training_profiler.settings import Settings
from training_profiler.snapshot.snapshot import PROFILER, Snapshot
from training_profiler.units import NS_PER_S

OVERFULL: Final = 4 * FLUSH_AT_MOST  # integers in a thread's buffer
LOOK_NS: Final = NS_PER_S // 50  # at most this often is it looked whether a step ended a flush interval
PATIENCE_S: Final = 1.0  # for another thread that is just draining, which takes it milliseconds
WAIT_FOR_DRAIN_S: Final = 5.0  # at the end, for another thread that is just draining


class Session:
    """One profiled run, from ``start`` to ``finish``.

    Any thread may record; the one that holds ``_busy`` drains and reports. Nobody waits for it: who
    finds it taken comes back at the next full buffer or step.
    """

    def __init__(
        self,
        recorder: Recorder,
        settings: Settings,
        section_cost_ns: float = 0.0,
        watch: Instrumentation | None = None,
        begin_ns: int | None = None,
        ranks: RankPatches | Instrumentation | None = None,
    ) -> None:
        self.settings = settings
        self.watch = watch  # what infers sections and steps, where nobody edited the training
        self.is_running = False
        self.has_reported = False
        self.profiler_health = ProfilerHealth(
            recorder, section_cost_ns if watch is None else PATCH_COST * section_cost_ns
        )
        self._recorder = recorder
        self._busy = threading.Lock()
        self._busy_thread: int | None = None
        self._waiting = 0  # threads that wait for _busy
        self._begin_ns = recorder.clock() if begin_ns is None else begin_ns
        self._budget, self._epoch_budget = Budget(recorder.clock), Budget(recorder.clock)
        self._outputs = Outputs(settings, recorder.names, self._begin_ns, self.profiler_health, self._send_last_row)
        self._pipeline = Pipeline(
            recorder,
            settings,
            self._begin_ns,
            watch,
            self.profiler_health,
            self._outputs,
            lambda: (self._budget.left_out, self._epoch_budget.left_out),
        )
        self._shutdown = Shutdown(self.finish)
        self._ranks = ranks  # what sees exchanges with other ranks
        self._gradient_sync = None if ranks is None else ranks.context.gradient_sync
        if ranks is not None:
            self._pipeline.peers.exchange = ranks.context.gradient_sync
            self._pipeline.peers.meetings = ranks.context.sync_points
        self.loaders = self._pipeline.loaders
        self.samplers = self._pipeline.samplers
        self.captures = self._pipeline.captures
        self.captures.ask_flush = self._flush_soon
        self._steps_marked = 0
        self._pipeline.hang_detector.steps = lambda: self._steps_marked
        self._next_report = settings.log_every
        self._lead = 0  # so many steps before rank 0 reports has this one summed up and told
        self._next_flush_ns = self._begin_ns + self._flush_ns
        self._next_look_ns = 0
        self._ended_by: str | None = None

    def start(self, opens_files: bool = True) -> None:
        """Begin to listen to the recorder; open the run folder now, or when there is something to write."""
        self._recorder.discard()
        self._recorder.names.limit = self.settings.max_names
        self._recorder.on_full = self._on_full
        self._recorder.has_session = True
        self._shutdown.install()
        self.is_running = True
        self.samplers.run(self.settings, self._begin_ns)
        if opens_files:
            self._outputs.open()

    def reconfigure(self, settings: Settings) -> None:
        """Go on with other settings: a session that a section began, and that is now started by name."""
        self.settings = settings
        self._outputs.reconfigure(settings)
        self._pipeline.reconfigure(settings)
        self._recorder.names.limit = settings.max_names
        self._next_report = self._steps_marked + settings.log_every
        self._next_flush_ns = self._recorder.clock() + self._flush_ns
        self.samplers.run(settings, self._recorder.clock())
        self._shutdown.install()  # the section that began the run may have been on another thread
        self._outputs.open()

    def step(self, at_ns: int | None = None) -> None:
        """End a training step, now or at a time that is still held back; report and flush where it is time."""
        if not self._steps_marked:
            self._pipeline.training_thread = self._recorder.thread_id()
            self.samplers.sample_this_thread()
            self._outputs.begin_training()
            self._lead = self._outputs.lead()
            if self._outputs.rank.is_one_of_many():
                self.profiler_health.guard("end by SIGTERM", self._shutdown.end_where_stuck)
        now_ns = self._recorder.mark(STEP_END, at_ns)
        self._steps_marked += 1
        is_look = now_ns >= self._next_look_ns
        if is_look:
            self._next_look_ns = now_ns + LOOK_NS
            self.samplers.look(now_ns)
            self.captures.look(now_ns)
        if self.captures.is_on:
            self.captures.step_ended(self._steps_marked, now_ns)
        if self._gradient_sync is not None and self._gradient_sync.modules:
            self._gradient_sync.step_ended(self._steps_marked - 1, now_ns)
        if self._steps_marked < COUNTED_BY and self.watch is not None and self.settings.flops:
            self.watch.flops.step_ended(self._steps_marked)
        if self.watch is not None and (turn := self.watch.epoch_boundary()) is not None:
            self._roll_over_epoch(turn)
        steps = self._steps_marked + self._lead
        if steps >= self._next_report:
            self._next_report += self.settings.log_every
            if self._budget.allows():
                self._exclusively(self._report, PATIENCE_S)
            return
        if steps + 1 == self._next_report:
            self._outputs.channel.read_soon()
        if is_look and (now_ns >= self._next_flush_ns or self._recorder.is_backed_up()):
            self._on_full()

    def _roll_over_epoch(self, turn: EpochBoundary) -> None:
        """Let an epoch end and the next begin at a time that is still held back."""
        held_ns, self._recorder.watermark_ns = self._recorder.watermark_ns, turn.at_ns
        is_shown = self._epoch_budget.allows()
        begin_ns = time.thread_time_ns()
        self._exclusively(lambda: self._pipeline.roll_over_epoch(turn if is_shown else None), PATIENCE_S)
        self._epoch_budget.spend(time.thread_time_ns() - begin_ns)
        self._recorder.watermark_ns = held_ns

    def move_to_this_thread(self) -> None:
        """Let the run's time be the calling thread's: the one that trained before has ended."""
        if self._steps_marked and self._pipeline.training_thread != self._recorder.thread_id():
            self._exclusively(self._flush, PATIENCE_S)
            self._pipeline.training_thread = self._recorder.thread_id()
            self.samplers.sample_this_thread()

    def begin_epoch(self, number: int) -> None:
        """Begin an epoch on the calling thread."""
        if not self._steps_marked:
            self._pipeline.training_thread = self._recorder.thread_id()
            self.samplers.sample_this_thread()
        self._mark_epoch(EPOCH_BEGIN)
        self._exclusively(lambda: self._pipeline.begin_epoch(number), PATIENCE_S)

    def end_epoch(self, is_complete: bool) -> None:
        """End the epoch under way and print its summary."""
        self._mark_epoch(EPOCH_END)
        self._exclusively(lambda: self._pipeline.end_epoch(is_complete), PATIENCE_S)

    def _mark_epoch(self, kind: int) -> None:
        if self.watch is not None:
            self.watch.use_manual_epochs()
        self._recorder.mark(kind)

    def snapshot(self) -> Snapshot:
        """Return the figures of the run so far."""
        self._exclusively(self._flush, PATIENCE_S)
        return self._pipeline.stats()

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
                self.captures.stop(ended_by)
                self.samplers.stop()
                self.profiler_health.guard("final summary", lambda: self._finish(ended_by))
        finally:
            self._recorder.on_full = self._recorder.discard
            self._shutdown.remove()
            self._busy_thread = None
            if is_free:
                self._busy.release()
        if self._ended_by is not None:
            self._shutdown.exit_by_sigterm()
        return True

    def abandon(self) -> None:
        """Forget the run without a word: in a forked child it is the parent's."""
        self.is_running = False
        self._recorder.watermark_ns = None
        self.samplers.abandon()
        self.captures.abandon()
        self._outputs.abandon()
        self._shutdown.remove()  # a worker stuck in C must die of SIGTERM at once, as it would without us
        self._recorder.on_full = self._recorder.discard

    @property
    def _flush_ns(self) -> int:
        return int(self.settings.flush_s * NS_PER_S)

    def _flush_soon(self) -> None:
        self._next_flush_ns = 0

    def _on_full(self) -> None:
        if self._recorder.is_blocked_at(
            self._pipeline.accumulator.at_ns
        ):  # nothing to drain before the step under way ends
            return
        if self._recorder.backlog() > OVERFULL:  # more than may be held back: what it was is left at the best guess
            self._recorder.release(self._recorder.clock())
        # A thread that records faster than others can drain has to wait for them, or memory had no bound.
        patience_s = PATIENCE_S if self._recorder.backlog() > OVERFULL else 0.0
        is_due = self._recorder.clock() >= self._next_flush_ns or len(self._pipeline.accumulator.step_ns) > MAX_MARKS
        self._exclusively(self._flush if is_due else self._pipeline.drain, patience_s)

    def _exclusively(self, work: Callable[[], None], patience_s: float = 0.0) -> None:
        """Do ``work`` unless another thread drains; wait ``patience_s`` for that one at most."""
        thread = threading.get_ident()
        if self._busy_thread == thread:  # a signal handler, or a finalizer, in the middle of a drain
            return
        if not patience_s and self._waiting:  # let them pass, or busy threads would take turns for ever
            return
        begin_ns = self._recorder.clock()
        self._waiting += patience_s > 0
        try:
            is_free = self._busy.acquire(timeout=patience_s)
        finally:
            self._waiting -= patience_s > 0
        if not is_free:
            return
        # Ctrl-C comes after a call: none stands outside of ``try``, nor before we are no longer busy.
        try:
            self._busy_thread = thread
            with self._recorder.section(PROFILER):
                if self.is_running:
                    without_tracing(lambda: self.profiler_health.guard("statistics", work))
        finally:
            self._busy_thread = None
            self._busy.release()
            if self._recorder.thread_id() == self._pipeline.training_thread:  # others do this beside the training
                self.profiler_health.spent_ns += self._recorder.clock() - begin_ns
        if self._ended_by is not None:
            self.finish(self._ended_by)

    def _flush(self) -> None:
        self._pipeline.flush()
        self._next_flush_ns = self._recorder.clock() + self._flush_ns

    def _report(self) -> None:
        begin_ns = time.thread_time_ns()  # of this thread: what other work on the machine costs is not ours
        self._pipeline.report()
        self._next_flush_ns = self._recorder.clock() + self._flush_ns
        self._budget.spend(time.thread_time_ns() - begin_ns)

    def _send_last_row(self, tracker: str) -> None:
        """Send what was measured since the last report to a tracker whose run the program is about to end."""
        self._exclusively(lambda: self._flush_and_send(tracker), PATIENCE_S)

    def _flush_and_send(self, tracker: str) -> None:
        self._flush()
        self._pipeline.send_interval(tracker)

    def _finish(self, ended_by: str | None) -> None:
        if self._ranks is not None:
            self.profiler_health.guard("patches", self._ranks.close)
            self.profiler_health.notes += self._ranks.notes()
        has_trained = self.watch is None or self.watch.has_trained or self._steps_marked
        if not has_trained and self._outputs.run_folder is None:
            return  # why nothing was measured is said elsewhere, and once
        self.has_reported = True
        self._pipeline.close(ended_by)
