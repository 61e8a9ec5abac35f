"""The composition root: a run from start to exit, its parts, outputs and health. Never: compute statistics itself."""

import sys
import threading
import time
from collections.abc import Callable
from typing import Any, Final

from training_profiler.base.units import NS_PER_S
from training_profiler.inspections.flop_counter import COUNTED_BY
from training_profiler.instrumentation.loop_detection.step_detector import EpochBoundary
from training_profiler.model.snapshot import PROFILER, Snapshot
from training_profiler.recording.event_codes import EPOCH_BEGIN, EPOCH_END, STEP_END
from training_profiler.recording.recorder import MAX_MARKS, NO_LIMIT, TrainingProgress
from training_profiler.recording.untraced import without_tracing
from training_profiler.runtime.health import REPORTS_FREE, REPORTS_SHOWN
from training_profiler.runtime.outputs import PROGRAM
from training_profiler.runtime.parts import Component
from training_profiler.runtime.pipeline import Pipeline, RunContext, SessionCalls
from training_profiler.runtime.shutdown import Shutdown, held_handler_errors
from training_profiler.settings.settings import Settings
from training_profiler.sinks.sink import MetricRow
from training_profiler.storage.run_folder import REPORT_TEXT

POLL_NS: Final = NS_PER_S // 50  # shortest time between two checks for a due flush
PATIENCE_S: Final = 1.0  # for another thread's drain, which takes milliseconds
WAIT_FOR_DRAIN_S: Final = 5.0  # at the end, for another thread's drain
FIRST_FLUSH_S: Final = 0.02  # after the begin
EARLY_FLUSHES: Final = 5  # each after so many times the time, until they are ``flush_s`` apart
SLACK: Final = 0.25  # of ``flush_s``, at most SLACK_S: a flush must be on the disk in time
SLACK_S: Final = 1.0
WAIT_FOR_DISK_S: Final = 0.2  # at the begin and in a snapshot; once, if the disk does not respond
SOON_S: Final = 0.01  # until a flush is tried again while another thread drains
IDLE_S: Final = 1.0  # between two looks of the thread that flushes where nothing is due
CELL_EVENT: Final = "post_run_cell"


class NotebookCells:
    """Shows a report below each cell in which steps have ended: a kernel's end shows nothing."""

    def __init__(self, progress: TrainingProgress, show: Callable[[], None]) -> None:
        self._progress, self._show = progress, show
        self._shown = 0
        self._events: Any = None

    def start(self) -> None:
        """Follow the cells of the kernel of Jupyter that this process is, if it is one. Imports nothing."""
        get_shell = getattr(sys.modules.get("IPython"), "get_ipython", None)
        shell: Any = None if get_shell is None else get_shell()
        if getattr(shell, "kernel", None) is not None and self._events is None:  # a terminal's shell has none
            self._events = shell.events
            self._events.register(CELL_EVENT, self._after_cell)

    def stop(self) -> None:
        """Follow no more."""
        events, self._events = self._events, None
        if events is not None and self._after_cell in events.callbacks.get(CELL_EVENT, ()):
            events.unregister(CELL_EVENT, self._after_cell)

    def _after_cell(self, *_result: Any) -> None:
        if self._progress.steps > self._shown:
            self._shown = self._progress.steps
            self._show()


class Session:
    """One profiled run, from ``start`` to ``close``.

    Any thread may record. The thread that holds ``_busy`` drains and reports. Other threads do not wait for it. They
    try again at the next full buffer or step.
    """

    def __init__(self, settings: Settings, context: RunContext) -> None:
        calls = SessionCalls(self.flush_beside, self.flush_soon, self.send_last_row, self.report_files)
        run = self.run = Pipeline(settings, context, calls)
        self.settings = settings
        self.instrumentation = run.instrumentation
        self.is_running = False
        # Captures close first because the threads of the samplers take a moment to end. The pipeline drains both.
        self._components: tuple[Component, ...] = (run.hang_watch, run.captures, run.samplers, run)
        self._cells = NotebookCells(run.progress, self.report_cell)
        self._recorder, self._progress, self._captures = run.recorder, run.progress, run.captures
        self._gradient_sync, self._planned_end = run.instrumentation.context.gradient_sync, run.planned_end
        self._shutdown = Shutdown(self.close)
        self._reports, self._epochs = run.reports, run.epochs
        self._busy = threading.Lock()
        self._busy_thread: int | None = None
        self._waiting = 0  # threads that wait for _busy
        self._next_report = settings.interval_steps
        self._no_report_before_ns = 0  # for what reports have cost
        self._passes_over_reports = False  # steps at which one is due end without this session
        self._steps_ahead = 0  # this rank publishes this many steps before rank 0 reports
        self._begun_ns = self._asked_ns = context.begin_ns
        self._next_flush_ns = context.begin_ns + self._flush_ns
        self._beside_ns = self._next_flush_ns  # the same for the thread beside the training
        self._next_early_ns: int | None = None  # a flush soon after the begin; it doubles
        self._next_poll_ns = 0
        self._step_end_ns = 0  # of the last step
        self._ended_by: str | None = None

    def start(self) -> None:
        """Begin to listen to the recorder."""
        self._recorder.limit_names(self.settings.max_names)
        self._recorder.listen(self._on_full)
        self._install_shutdown()
        self._begun_ns = self._recorder.clock()
        self._next_early_ns = self._begun_ns + int(FIRST_FLUSH_S * NS_PER_S)
        self.is_running = True
        self._cells.start()
        for component in self._components:
            component.start()
        # The program may look for the folder, and a child of its own must not be mistaken for git by ``os.wait``.
        self.run.outputs.settle(WAIT_FOR_DISK_S)

    def reconfigure(self, settings: Settings) -> None:
        """Apply new settings: the session began with a section, and the program now calls start."""
        self.use_api()
        self.settings = settings
        self._recorder.be_quiet(None)
        self._recorder.limit_names(settings.max_names)
        self._passes_over_reports, self._no_report_before_ns = False, 0
        self._next_report = self._progress.steps + settings.interval_steps
        self._flushed(self._recorder.clock())
        self._install_shutdown()  # the run may have begun on another thread
        for component in self._components:
            component.reconfigure(settings)

    def _install_shutdown(self) -> None:
        self._shutdown.install()
        self.run.guard.run("end by SIGTERM", self._shutdown.end_where_stuck)

    def step(self, at_ns: int | None = None) -> None:
        """End a training step now or at ``at_ns``. Report and flush if they are due."""
        self._end_step(at_ns)
        self._be_quiet()
        if self._planned_end.is_on and self.is_running:
            self._planned_end.step_ended(self._progress.steps, self._step_end_ns)

    def _be_quiet(self) -> None:
        """Let steps end without this session while nothing of ``_end_step`` is due."""
        steps, before = self._progress.steps, self._next_report - 1 - self._steps_ahead
        has_ddp = bool(self._gradient_sync.modules)
        self._passes_over_reports = self._no_report_before_ns >= self._next_poll_ns
        if self._passes_over_reports:
            before = NO_LIMIT
        if self._captures.is_on or has_ddp or steps + 1 < COUNTED_BY or not self.is_running:
            before = 0
        before = min(before, self._planned_end.next_step)
        self._recorder.be_quiet(self._progress, before, self._next_poll_ns)

    def _end_step(self, at_ns: int | None) -> None:
        if not self._progress.steps:
            self._begin_training()
        boundary = self.instrumentation.epoch_boundary()
        if boundary is None:
            now_ns = self._step_end_ns = self._recorder.mark(STEP_END, at_ns)
        else:
            now_ns = self._step_end_ns = self._mark_step_and_epoch(at_ns, boundary)
        steps = self._progress.end_step()
        is_poll = now_ns >= self._next_poll_ns
        if is_poll:
            self._next_poll_ns = now_ns + POLL_NS
            self.run.samplers.poll(now_ns)
            self._captures.poll(now_ns)
            self.instrumentation.early_steps.poll()
        if self._captures.is_on:
            self._captures.step_ended(steps, now_ns)
        if self._gradient_sync.modules:
            self._gradient_sync.step_ended(steps - 1, now_ns)
        if steps < COUNTED_BY:
            self.instrumentation.step_ended(steps, self.settings.flops)
        if boundary is not None:
            self._roll_over_epoch(boundary, now_ns)
        steps += self._steps_ahead
        self._pass_over_reports(steps - 1)
        if steps >= self._next_report:
            self._next_report += self.settings.interval_steps
            if not self.run.outputs.wants_report():
                self.run.guard.run("console", self.run.outputs.announce)
                if steps <= REPORTS_SHOWN * self.settings.interval_steps:  # the program may be killed soon
                    self._exclusively(self._flush, PATIENCE_S)
            elif self._reports.allows(REPORTS_FREE if self.settings.asks_for_reports else REPORTS_SHOWN):
                self._exclusively(self._report, PATIENCE_S, self._reports.spend)
            else:
                self._no_report_before_ns = now_ns + self._reports.refuses_for_ns()
            return
        if steps + 1 == self._next_report:
            self.run.channel.read_soon()
        if is_poll and (now_ns >= self._next_flush_ns or self._recorder.is_backed_up()):
            self._on_full()

    def _pass_over_reports(self, steps: int) -> None:
        """Count the reports that were due by ``steps`` while they were refused without being asked about."""
        every = self.settings.interval_steps
        passed = (steps - self._next_report) // every + 1
        if self._passes_over_reports and passed > 0:
            self._reports.refuse(passed)
            self._next_report += passed * every

    def _mark_step_and_epoch(self, at_ns: int | None, boundary: EpochBoundary) -> int:
        """Record the end of a step and the begin of an epoch before or after it; return the step's end.

        The time from an epoch's last step to the next pass over the data belongs to no step.
        """
        mark, is_later = self._recorder.mark, boundary.number > 1
        if at_ns is not None and at_ns <= boundary.at_ns:  # the last step of the epoch before
            step_end_ns = mark(STEP_END, at_ns, boundary.at_ns)
            if is_later:
                mark(EPOCH_BEGIN, boundary.at_ns, step_end_ns)
            return step_end_ns
        if is_later and boundary.at_ns > max(self._step_end_ns, self._recorder.quiet_end_ns):  # a loop may read ahead
            mark(EPOCH_BEGIN, boundary.at_ns)
        return mark(STEP_END, at_ns, boundary.at_ns)

    def _begin_training(self) -> None:
        self._trains_here()
        self.run.begin_training()
        self._steps_ahead = self.run.exchange.steps_ahead()

    def _trains_here(self) -> None:
        self._progress.move_to(self._recorder.thread_id())
        self.run.samplers.sample_this_thread()

    def _roll_over_epoch(self, boundary: EpochBoundary, step_end_ns: int) -> None:
        """End an epoch and begin the next, in which a step has ended already unless that one belonged to the last."""
        held_ns = self._recorder.move_watermark(boundary.at_ns)
        shown = boundary if self._epochs.allows(1 + REPORTS_FREE) else None  # the first only begins an epoch
        spend = self.run.profiler_health.collect if shown is None else self._epochs.spend
        self._exclusively(lambda: self.run.roll_over_epoch(shown), PATIENCE_S, spend)
        self._recorder.move_watermark(None if held_ns is None else step_end_ns)

    def move_to_this_thread(self) -> None:
        """Attribute the run's time to the calling thread: the previous training thread has ended."""
        if self._progress.steps and self._progress.thread_id != self._recorder.thread_id():
            self._exclusively(self._flush, PATIENCE_S)
            self._trains_here()

    def begin_epoch(self, number: int) -> None:
        """Begin an epoch on the calling thread."""
        if not self._progress.steps:
            self._trains_here()
        self._at_epoch(EPOCH_BEGIN, lambda: self.run.begin_epoch(number))

    def end_epoch(self, is_complete: bool) -> None:
        """End the epoch under way and print its summary."""
        self._at_epoch(EPOCH_END, lambda: self.run.end_epoch(is_complete))

    def _at_epoch(self, kind: int, work: Callable[[], None]) -> None:
        self.instrumentation.use_manual_epochs()
        self._recorder.mark(kind)
        self._exclusively(work, PATIENCE_S)

    def use_api(self) -> None:
        """Report also on a process that does not train: its program measures itself."""
        self._progress.stop_waiting(uses_api=True)

    def snapshot(self) -> Snapshot:
        """Return the figures of the run so far."""
        self.use_api()
        self.run.outputs.settle(WAIT_FOR_DISK_S)  # for the name of the run folder
        self.instrumentation.resolve_before_training()
        stats: list[Snapshot] = []
        self._exclusively(lambda: self._flush_and(lambda: stats.append(self.run.stats())), PATIENCE_S)
        self.run.outputs.settle(WAIT_FOR_DISK_S)  # a program may end itself right afterwards
        return stats[0] if stats else self.run.stats()

    def close(self, ended_by: str | None = None) -> bool:
        """Print the final summary and close the run folder, once.

        Returns:
            False if a signal interrupted this thread during its drain or the final summary. The interrupted
            work then finishes the session and ends the process.

        Raises:
            Exception: raised by a signal handler of the program meanwhile.
        """
        if self._busy_thread == threading.get_ident():
            self._ended_by = ended_by
            return False
        with held_handler_errors() as held:
            self._close(ended_by)
        if self._ended_by is not None:
            self._shutdown.exit_by_sigterm()
        if held:
            raise held[0]
        return True

    def _close(self, ended_by: str | None) -> None:
        is_free = self._busy.acquire(timeout=WAIT_FOR_DRAIN_S)  # also for another thread's final summary
        self._busy_thread = threading.get_ident()
        self._pass_over_reports(self._progress.steps + self._steps_ahead)
        try:
            if self.is_running:
                self.is_running = False
                self._cells.stop()
                for component in self._components:
                    component.close(ended_by)
        finally:
            self._recorder.stop_listening()
            self._shutdown.remove()
            self._busy_thread = None
            if is_free:
                self._busy.release()

    def after_fork_in_child(self) -> None:
        """Discard the run without output: it belongs to the parent process."""
        self.is_running = False
        self._recorder.move_watermark(None)
        self._cells.stop()
        for component in self._components:
            component.after_fork_in_child()
        self._shutdown.remove()  # a worker stuck in C must die of SIGTERM at once, as it would without us
        self._recorder.stop_listening()

    @property
    def _flush_ns(self) -> int:
        return int((self.settings.flush_s - min(SLACK_S, SLACK * self.settings.flush_s)) * NS_PER_S)

    def flush_beside(self) -> float:
        """Flush if that is due, on a thread beside the training; return in how many seconds to ask again.

        So a run that is killed inside a long section, or in its first step, has lost no more than ``flush_s``.
        """
        if not self.is_running:
            return IDLE_S
        now_ns = self._recorder.clock()
        due_ns = self._beside_ns
        if self._next_early_ns is not None and (self.run.rank.is_certain or self._progress.steps):
            due_ns = min(due_ns, self._next_early_ns)
        if now_ns < due_ns and not self._planned_end.is_look_due(self._progress.steps, now_ns):
            return min(IDLE_S, (due_ns - now_ns) / NS_PER_S)
        if self._progress.steps:
            self.run.guard.run("cost of a section", self.run.profiler_health.measure_again)
        return 0.0 if self._exclusively_beside() else SOON_S

    def _exclusively_beside(self) -> bool:
        """Flush unless another thread drains or waits for that; return whether it was done."""
        if self._waiting or not self._busy.acquire(blocking=False):
            return False
        try:
            self._busy_thread = threading.get_ident()
            if self.is_running:
                self.run.guard.run("statistics", self._flush_on_time)
        finally:
            self._busy_thread = None
            self._busy.release()
        return True

    def _flush_on_time(self) -> None:
        now_ns = self._recorder.clock()
        is_early = now_ns < self._beside_ns
        self.run.flush(is_beside=True, is_early=is_early)
        if self._planned_end.is_look_due(self._progress.steps, now_ns):
            self._planned_end.look(self.run.first_finding)
        if self._next_early_ns is not None and now_ns >= self._next_early_ns:
            self._next_early_ns = self._begun_ns + EARLY_FLUSHES * (now_ns - self._begun_ns)
            if self._next_early_ns - now_ns >= self._flush_ns:
                self._next_early_ns = None
        self._flushed(now_ns)

    def flush_soon(self) -> None:
        """Flush at the end of the next step if possible."""
        self._asked_ns, self._next_flush_ns = self._recorder.clock(), 0

    def _on_full(self) -> None:
        steps = self.run.accumulator
        if self._recorder.is_blocked_at(steps.at_ns):  # until the end of the current step
            return
        if self._recorder.is_overfull():  # the buffer is full: keep the best guess for the pending events
            self._recorder.release(self._recorder.clock())
        # A thread that records faster than others drain must wait for them. Otherwise memory would grow without bound.
        patience_s = PATIENCE_S if self._recorder.is_overfull() else 0.0
        is_due = self._recorder.clock() >= self._next_flush_ns or len(steps.step_ns) > MAX_MARKS
        self._exclusively(self._flush if is_due else self.run.drain, patience_s)

    def _exclusively(
        self, work: Callable[[], None], patience_s: float = 0.0, spend: Callable[[int], None] | None = None
    ) -> None:
        """Do ``work``, which only one thread may do at a time, unless another drains for longer than ``patience_s``.

        ``spend`` is called with its CPU time, in ns; by default that is a cost of collecting events.
        """
        thread = threading.get_ident()
        if self._busy_thread == thread:  # a signal handler, or a finalizer, in the middle of a drain
            return
        if not patience_s and self._waiting:  # waiting threads go first
            return
        begin_ns, begin_cpu_ns = self._recorder.clock(), time.thread_time_ns()
        self._waiting += patience_s > 0
        try:
            is_free = self._busy.acquire(timeout=patience_s)
        finally:
            self._waiting -= patience_s > 0
        if not is_free:
            return
        # Ctrl-C can arrive after any call. So every call here is inside ``try``.
        try:
            self._busy_thread = thread
            with self._recorder.own_section(PROFILER):
                if self.is_running:
                    without_tracing(lambda: self.run.guard.run("statistics", work))
        finally:
            self._busy_thread = None
            self._busy.release()
            (spend or self.run.profiler_health.collect)(time.thread_time_ns() - begin_cpu_ns)
            if self._recorder.thread_id() == self._progress.thread_id:  # other threads do not delay the training
                self.run.profiler_health.spend(self._recorder.clock() - begin_ns)
        if self._ended_by is not None:
            self.close(self._ended_by)

    def _flush(self) -> None:
        self.run.flush()
        self._flushed(self.run.accumulator.at_ns)

    def _flushed(self, covered_ns: int) -> None:
        """Set when to flush next; the journal covers the run up to ``covered_ns``."""
        is_asked = self._asked_ns > covered_ns  # while a thread beside the training flushed what was before
        self._next_flush_ns = 0 if is_asked else self._recorder.clock() + self._flush_ns
        self._beside_ns = covered_ns + self._flush_ns

    def _report(self) -> None:
        self.run.report()
        self._flushed(self.run.accumulator.at_ns)

    def send_last_row(self, tracker: str) -> None:
        """Send the metrics since the last report to a tracker: the program is about to end its run."""
        self._exclusively(lambda: self._flush_and(lambda: self.run.send_interval(tracker)), PATIENCE_S)

    def report_cell(self) -> None:
        """Report on a cell of a notebook that has ended."""
        self._exclusively(lambda: self._flush_and(self.run.report_cell), PATIENCE_S)

    def _flush_and(self, work: Callable[[], None]) -> None:
        self._flush()
        work()

    def pop_rows(self, is_last: bool = False) -> list[MetricRow]:
        """Return the rows of metrics since the last call, for the program's own loggers.

        The first call returns none, later ones those of each report. The last one adds what was measured since.
        """
        if is_last and self.is_running and self._progress.steps:
            self.send_last_row(PROGRAM)
        return self.run.outputs.pop_rows()

    def report_text(self) -> str:
        """Return the final summary as it would be now, or as it was at the end."""
        if self.is_running:
            self._exclusively(self._flush, PATIENCE_S)
        return self.run.report_files()[REPORT_TEXT]

    def report_files(self) -> dict[str, str]:
        """Return the final report as it would be now, as the texts of its files: the program ends its tracker's run."""
        if self.is_running:
            self._exclusively(self._flush, PATIENCE_S)
        return self.run.report_files() if self._progress.steps else {}
