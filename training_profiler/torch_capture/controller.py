"""Deep capture of one session: opens and ends windows, and reports their cost."""

import atexit
import gc
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Final, Protocol

from training_profiler.base.units import NS_PER_S
from training_profiler.recording.section import Clock
from training_profiler.safety.fault_guard import Guard
from training_profiler.torch_capture.conflicts import blocker, end_past_destructors, is_in_backward, is_main_thread
from training_profiler.torch_capture.main_thread_signal import MainThreadInterrupt
from training_profiler.torch_capture.plan import CapturePlan
from training_profiler.torch_capture.request import Request, RequestBox
from training_profiler.torch_capture.schedule import (
    DROPS,
    ELSEWHERE,
    LEFT,
    OTHERS,
    CaptureMessages,
    RecentStepTimes,
    Schedule,
)
from training_profiler.torch_capture.trace_file import CapturedSpans, SpanSource
from training_profiler.torch_capture.trace_writer import PART, OutputLocation, TraceWriter
from training_profiler.torch_capture.window import Window


class Recording:
    """One window at a time, opened and ended on the main thread; ``writer`` exists until its file is reported.

    Args:
        woken: runs on the main thread after a call of ``wake.ring``.
        at_exit: runs at the end of the process if a window is open.
    """

    def __init__(
        self,
        clock: Clock,
        source: SpanSource,
        names: Mapping[int, str],
        woken: Callable[[], None],
        at_exit: Callable[[], None],
    ) -> None:
        self.window: Window | None = None
        self.writer: TraceWriter | None = None
        self.wake = MainThreadInterrupt(woken)
        self.is_moving = False  # a window is being opened or ended
        self._clock, self._source, self._names = clock, source, names
        self._at_exit = at_exit

    def open(self, window: Window, writer: TraceWriter, give_way: Callable[[], None], begin_ns: int) -> str | None:
        """Start recording; the training waits since ``begin_ns``. Return the reason if another profiler is active."""
        self.is_moving = True
        try:
            self.wake.arm()
            self.window, self.writer = window, writer
            why_not = window.start(give_way)
            if why_not is not None:
                self._clear_window()
                self.writer = None
                return why_not
            self._source.slowed_by_capture.begin(window.first)
            spans = CapturedSpans(self._names, window.begin_ns)
            window.keep_spans(spans)
            self._source.send_every_span(spans.add, spans.add_samples)
            writer.start((window.begin_ns - begin_ns) / NS_PER_S)
            atexit.register(self._at_exit)
            return None
        except BaseException:
            writer.drop()
            self.discard()
            self.writer = None
            self._source.slowed_by_capture.end(window.first)
            raise
        finally:
            self.is_moving = False

    def end(self, place: Callable[[bool], OutputLocation]) -> None:
        """Stop recording. Have the trace written unless the window is dropped or has no finished step."""
        window, writer = self.window, self.writer
        if window is None or writer is None:
            return
        self.is_moving = True
        is_kept = False
        try:
            if window.must_end in DROPS:
                writer.drop()
            elif not window.ends_ns:
                writer.drop(f"step {window.first} was not over {window.must_end}" if window.must_end else None)
            else:
                begin_ns = self._clock()
                if window.spans is not None:
                    window.spans.ends(window.ends_ns[-1])
                window.stop()
                stop_s = (self._clock() - begin_ns) / NS_PER_S
                place(True)
                writer.write(lambda: place(False), stop_s)
                is_kept = True
        except BaseException:
            writer.drop()
            raise
        finally:
            if is_kept:
                self._clear_window()
            else:
                self.discard()
            self.is_moving = False

    def discard(self) -> None:
        """Stop recording and discard the trace."""
        if self.window is not None:
            self.window.discard()
        self._source.send_every_span(None)
        self._clear_window()

    def _clear_window(self) -> None:
        self.window = None
        self.wake.disarm()
        atexit.unregister(self._at_exit)

    def give_up(self) -> None:
        """Drop the window. If this thread cannot end it, ask the main thread."""
        if self.writer is not None:
            self.writer.drop()
        if self.window is not None and is_main_thread():
            self.discard()
        elif self.window is not None:
            self.window.end_early(LEFT)
            self.wake.ring()

    def release_writer(self, last_step: int) -> TraceWriter | None:
        """Return the writer and forget it. Only the next step is still slowed."""
        writer, self.writer = self.writer, None
        if writer is not None:
            self._source.send_every_span(None)
            self._source.slowed_by_capture.end(last_step + 1)  # garbage collection after the window slows the next step
        return writer

    def after_fork_in_child(self) -> None:
        """Discard the window: it belongs to the parent process."""
        window, self.window, self.writer = self.window, None, None
        self._source.send_every_span(None)
        if window is not None:
            self.wake.disarm()
            atexit.unregister(self._at_exit)
            window.after_fork_in_child()


class CaptureSettings(Protocol):
    """The part of the run's settings that holds the plan."""

    @property
    def capture(self) -> CapturePlan:
        """When windows are to open."""


POLL_NS: Final = NS_PER_S  # between two checks for a request
GIVE_WAY_S: Final = 30.0  # longest wait for the main thread to end a window
JOIN_S: Final = 20.0  # longest wait for the last file at the end of a run
HURRY_S: Final = 5.0  # after SIGTERM, which SIGKILL often follows


class Captures:
    """The windows of one session. All methods but ``wait_for_file`` are called on the training thread.

    Args:
        run_as_overhead: runs work on the training thread and attributes its time to the profiler.
        place: returns the output location. True has a missing run folder made soon.
        read_soon: does work that reads files, on another thread; returns False if there is no room for it.
        report: prints a line and keeps it for the report.
        source: sends sections and records the steps slowed by windows.
        plan: when windows open.
        ask_flush: requests a flush.
    """

    def __init__(
        self,
        clock: Clock,
        guard: Guard,
        run_as_overhead: Callable[[Callable[[], None]], None],
        place: Callable[[bool], OutputLocation],
        read_soon: Callable[[Callable[[], None]], bool],
        report: Callable[[str], None],
        source: SpanSource,
        names: Mapping[int, str],
        plan: CapturePlan,
        ask_flush: Callable[[], None],
    ) -> None:
        self._ask_flush = ask_flush
        self._clock, self._guard_part, self._run_as_overhead = clock, guard, run_as_overhead
        self._place, self._read_soon, self._report = place, read_soon, report
        self._messages = CaptureMessages(report)
        self._recording = Recording(clock, source, names, self._on_main_thread, self._at_exit)
        self._step_times = RecentStepTimes()
        self._schedule = Schedule(plan, self._step_times)
        self.is_on = not self._schedule.is_idle  # whether ``step_ended`` must be called
        self._box = RequestBox(time.time_ns())
        self._is_reading = False  # on another thread
        self._found: deque[Request] = deque()
        self._has_open_window = False  # the run ended with a window that this thread could not end
        self._has_recorded = False
        self._opened = 0  # windows, without those ended for another profiler
        self._steps = 0
        self._patience_s = JOIN_S
        self._next_poll_ns = 0

    def start(self) -> None:
        """Do nothing: windows open at ends of steps."""

    def reconfigure(self, settings: CaptureSettings) -> None:
        """Apply a new plan."""
        self._schedule.reconfigure(settings.capture)
        self._update_is_on()

    def _update_is_on(self) -> None:
        """Ask for ends of steps only if they are needed."""
        self.is_on = not self._schedule.is_idle or self._recording.writer is not None

    def _guard(self, work: Callable[[], None]) -> None:
        """Do ``work``. After an error drop the open window, which would never end otherwise."""

        def done() -> None:
            try:
                work()
            except Exception:
                self._give_up()
                raise

        self._guard_part(PART, done)

    def _give_up(self) -> None:
        self.is_on = False
        self._recording.give_up()

    @property
    def _plan(self) -> CapturePlan:
        return self._schedule.plan

    def poll(self, now_ns: int) -> None:
        """Accept a request that was found, and have another thread look for one once a second."""
        if self._found:
            self._guard(self._accept_found)
        if now_ns >= self._next_poll_ns:
            self._next_poll_ns = now_ns + POLL_NS
            self._guard(self._check_request)

    def _check_request(self) -> None:
        if not self._is_reading:
            self._is_reading = True  # first: the other thread may be done at once
            if not self._read_soon(self._look_for_request):
                self._is_reading = False

    def _look_for_request(self) -> None:
        try:
            place = self._place(False)
            request = self._box.read_new(place.run_folder)
            if request is not None and request.is_of(place.rank):
                self._found.append(request)
        finally:
            self._is_reading = False

    def _accept_found(self) -> None:
        while self._found:
            self._accept(self._found.popleft())

    def _accept(self, request: Request) -> None:
        if self._opened >= self._plan.windows:
            self._messages.used_up(self._plan.windows, is_asked_for=True)
            return
        self._schedule.ask(request.steps)
        self._update_is_on()

    def step_ended(self, step: int, now_ns: int) -> None:
        """Note that step ``step``, counted from 1, has ended; call it where ``is_on``."""
        self._guard(lambda: self._step_ended(step, now_ns))

    def _step_ended(self, step: int, now_ns: int) -> None:
        self._steps = step
        window, writer = self._recording.window, self._recording.writer
        if window is not None:
            self._step_ended_in(window, now_ns)
            return
        if writer is None:
            self._step_times.step_ended(now_ns)
        else:  # the writer slows steps; they must not count as outliers
            self._step_times.interrupt()
            if not writer.thread.is_alive():
                self._run_as_overhead(self._report_window)
        length = self._schedule.due(step + 1, now_ns)
        if length and self._recording.writer is None:
            self._run_as_overhead(lambda: self._try_to_open(step + 1, length, now_ns))

    def _step_ended_in(self, window: Window, now_ns: int) -> None:
        if not is_main_thread():  # only the thread that started a profiler can stop it
            window.end_early(window.must_end or ELSEWHERE)
            self._recording.wake.ring()
            return
        if now_ns <= window.begin_ns:  # an inferred step end can arrive late
            window.begin_a_step_later()
            return
        window.ends_ns.append(now_ns)
        if (window.is_full or window.must_end is not None) and not is_in_backward():
            self._run_as_overhead(self._end)

    def _try_to_open(self, step: int, length: int, now_ns: int) -> None:
        if self._opened >= self._plan.windows:
            self._schedule.done()
            self._messages.used_up(self._plan.windows, is_asked_for=False)
            return
        self._step_times.interrupt()  # the checks below can take longer than a step
        self._schedule.done()
        begin_ns = self._clock()  # the step's end may have arrived late
        why_not = blocker(sys.modules.get("torch")) or self._open(step, length, begin_ns)
        if why_not is not None:
            self._schedule.later(now_ns, length)
            self._messages.none_now(why_not)

    def _open(self, step: int, length: int, begin_ns: int) -> str | None:
        window = Window(sys.modules["torch"], self._clock, step, step + length - 1)
        writer = TraceWriter(
            window, self._plan, self._recording.wake.ring, self._guard_part, self._step_times.median_ns
        )
        self._has_recorded = True  # also if another profiler records
        why_not = self._recording.open(window, writer, self._give_way, begin_ns)
        self._opened += why_not is None
        return why_not

    def _end(self) -> None:
        self._step_times.interrupt()
        self._recording.end(self._place)
        self._ask_flush()

    def _report_window(self) -> None:
        """Report the result of a window whose writer has ended."""
        writer = self._recording.release_writer(self._steps)
        if writer is not None and writer.must_report:
            begin_ns = self._clock()
            gc.collect()  # otherwise host memory grows with each window
            writer.add_cleanup((self._clock() - begin_ns) / NS_PER_S)
            self._step_times.interrupt()
            self._report(writer.line())
            self._schedule.went_well()
        self._update_is_on()

    def _on_main_thread(self) -> None:
        window, is_moving = self._recording.window, self._recording.is_moving
        if window is not None and window.must_end is not None and not is_moving and not is_in_backward():
            self._end_now(window)

    def _end_now(self, window: Window) -> None:
        self._guard(self._end)
        if self._recording.window is window:  # the guard has disabled this part
            self._give_up()

    def _give_way(self) -> None:
        """End the window: a profiler of the program is about to start on the calling thread."""
        window, writer = self._recording.window, self._recording.writer
        if window is None or writer is None or (is_main_thread() and self._recording.is_moving):  # our own profiler
            return
        window.end_early(OTHERS)
        if is_main_thread():
            self._end_now(window)
        else:
            until_s = time.monotonic() + GIVE_WAY_S
            while self._recording.window is window and time.monotonic() < until_s:
                self._recording.wake.ring()
                time.sleep(0.01)
        if writer.must_report:  # it ended just before, or never opened
            return
        self._opened -= 1
        self._schedule.later(self._clock(), window.last - window.first + 1)
        self._messages.gave_way()

    def close(self, ended_by: str | None) -> None:
        """End the open window at the end of the run. Keep it if the run ends normally."""
        self.is_on = False
        if ended_by == "SIGTERM":
            self._patience_s = HURRY_S
        window = self._recording.window
        if window is None:
            return
        if ended_by is not None or not is_main_thread() or self._recording.is_moving:
            window.end_early(LEFT)
        if is_main_thread() and not self._recording.is_moving:
            self._end_now(window)
        else:  # another thread must stop it, or a signal interrupted the stop
            self._has_open_window = True
            if not is_main_thread():
                self._recording.wake.ring()
        if window.must_end == LEFT or (not window.ends_ns and window.must_end is None):
            self._report(f"a capture window of step {window.first} on was dropped: {LEFT}")

    def wait_for_file(self) -> None:
        """Wait a moment for the last file and report it. Report windows that never opened."""
        if not self._has_open_window:
            self._wait_for_file()
        for sentence in self._schedule.missed(self._steps, self._opened):
            self._report(sentence)

    def _wait_for_file(self) -> None:
        writer = self._recording.writer
        if writer is not None:
            if self._place(True).run_folder is None:  # this rank never received a folder
                writer.call_off()
            writer.thread.join(self._patience_s)
            if writer.thread.is_alive():
                writer.call_off()
                writer.thread.join(1.0)
            self._recording.release_writer(self._steps)
            if writer.must_report:
                writer.explain_missing_file()
                self._report(writer.line())

    def _at_exit(self) -> None:
        if not self.is_on:  # while the run continues, its end closes the window
            self._recording.give_up()

    def notes(self) -> list[str]:
        """Return nothing: windows are reported when they end."""
        return []

    def after_fork_in_child(self) -> None:
        """Discard all state: it belongs to the parent process."""
        self.is_on = False
        self._recording.after_fork_in_child()
        if self._has_recorded:
            end_past_destructors()
