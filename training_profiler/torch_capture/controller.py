"""Deep capture of one session: opens and ends windows, and reports their cost."""

import atexit
import gc
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, Final

from training_profiler.base.units import NS_PER_S
from training_profiler.recording.section import Clock
from training_profiler.safety.fault_guard import Guard
from training_profiler.torch_capture.plan import CapturePlan, Schedule
from training_profiler.torch_capture.request import Request, RequestBox
from training_profiler.torch_capture.trace_writer import PART, OutputLocation, TraceWriter
from training_profiler.torch_capture.window import (
    MainThreadInterrupt,
    Window,
    blocker,
    end_past_destructors,
    is_in_backward,
    is_main_thread,
)

POLL_NS: Final = NS_PER_S  # between two checks for a request
GIVE_WAY_S: Final = 30.0  # longest wait for the main thread to end a window
JOIN_S: Final = 20.0  # longest wait for the last file at the end of a run
HURRY_S: Final = 5.0  # after SIGTERM, which SIGKILL often follows
OTHERS: Final = "a profiler of the program's own began"
LEFT: Final = "the run ended in it"
ELSEWHERE: Final = "when steps came to end on another thread"
DROPS: Final = (OTHERS, LEFT)  # reasons to discard a window


class Captures:
    """The windows of one session. All methods but ``wait_for_file`` are called on the training thread.

    One window is open at a time, opened and ended on the main thread. Its writer exists until its file is reported.

    Args:
        source: sends spans and samples of the training thread by ``send_every_span``, and has ``slowed_by_capture``.
        plan: when windows open.
        run_as_overhead: runs work on the training thread and attributes its time to the profiler.
        place: returns the output location. True has a missing run folder made soon.
        read_soon: does work that reads files, on another thread; returns False if there is no room for it.
        report: prints a line and keeps it for the report.
        ask_flush: requests a flush.
    """

    def __init__(
        self,
        clock: Clock,
        guard: Guard,
        source: Any,
        names: Mapping[int, str],
        plan: CapturePlan,
        *,
        run_as_overhead: Callable[[Callable[[], None]], None],
        place: Callable[[bool], OutputLocation],
        read_soon: Callable[[Callable[[], None]], bool],
        report: Callable[[str], None],
        ask_flush: Callable[[], None],
    ) -> None:
        self._clock, self._guard_part, self._source, self._names = clock, guard, source, names
        self._run_as_overhead, self._place, self._read_soon = run_as_overhead, place, read_soon
        self._report, self._ask_flush = report, ask_flush
        self._reported: set[str] = set()  # sentences that are reported once
        self._window: Window | None = None
        self._writer: TraceWriter | None = None
        self._wake = MainThreadInterrupt(self._on_main_thread)
        self._is_moving = False  # a window is being opened or ended
        self._schedule = Schedule(plan)
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

    def reconfigure(self, settings: Any) -> None:
        """Apply the plan of the run's settings."""
        self._schedule.reconfigure(settings.capture)
        self._update_is_on()

    def _update_is_on(self) -> None:
        """Ask for ends of steps only if they are needed."""
        self.is_on = not self._schedule.is_idle or self._writer is not None

    def _guard(self, work: Callable[[], None]) -> None:
        """Do ``work``. After an error drop the open window, which would never end otherwise."""

        def done() -> None:
            try:
                work()
            except Exception:
                self.is_on = False
                self._give_up()
                raise

        self._guard_part(PART, done)

    def _report_once(self, sentence: str) -> None:
        if sentence not in self._reported:
            self._reported.add(sentence)
            self._report(sentence)

    # Requests

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
            request, windows = self._found.popleft(), self._schedule.plan.windows
            if self._opened >= windows:
                had = "1 window of the run is" if windows == 1 else f"{windows} windows of the run are"
                self._report(f"a capture was asked for, but the {had} used up (windows=)")
            else:
                self._schedule.ask(request.steps)
                self._update_is_on()

    # Ends of steps

    def step_ended(self, step: int, now_ns: int) -> None:
        """Note that step ``step``, counted from 1, has ended; call it where ``is_on``."""
        self._guard(lambda: self._step_ended(step, now_ns))

    def _step_ended(self, step: int, now_ns: int) -> None:
        self._steps = step
        window, writer = self._window, self._writer
        if window is not None:
            self._step_ended_in(window, now_ns)
            return
        if writer is None:
            self._schedule.step_ended(now_ns)
        else:  # the writer slows steps; they must not count as outliers
            self._schedule.interrupt()
            if not writer.thread.is_alive():
                self._run_as_overhead(self._report_window)
        length = self._schedule.due(step + 1, now_ns)
        if length and self._writer is None:
            self._run_as_overhead(lambda: self._try_to_open(step + 1, length, now_ns))

    def _step_ended_in(self, window: Window, now_ns: int) -> None:
        if not is_main_thread():  # only the thread that started a profiler can stop it
            window.end_early(window.must_end or ELSEWHERE)
            self._wake.ring()
            return
        if now_ns <= window.begin_ns:  # an inferred step end can arrive late
            window.begin_a_step_later()
            return
        window.ends_ns.append(now_ns)
        if (window.is_full or window.must_end is not None) and not is_in_backward():
            self._run_as_overhead(self._end)

    def _try_to_open(self, step: int, length: int, now_ns: int) -> None:
        self._schedule.done()
        windows = self._schedule.plan.windows
        if self._opened >= windows:
            were = "was" if windows == 1 else "were"
            self._report_once(f"no further capture windows: {windows} {were} opened (windows=)")
            return
        self._schedule.interrupt()  # the checks below can take longer than a step
        begin_ns = self._clock()  # the step's end may have arrived late
        why_not = blocker(sys.modules.get("torch")) or self._open(step, length, begin_ns)
        if why_not is not None:
            self._schedule.later(now_ns, length)
            self._report_once(f"no capture window now, tried again later: {why_not}")

    def _open(self, step: int, length: int, begin_ns: int) -> str | None:
        """Start recording; the training waits since ``begin_ns``. Return the reason if another profiler is active."""
        window = Window(sys.modules["torch"], self._clock, step, step + length - 1)
        schedule = self._schedule
        writer = TraceWriter(window, schedule.plan, self._wake.ring, self._guard_part, schedule.median_ns)
        self._has_recorded = True  # also if another profiler records
        self._is_moving = True
        try:
            self._wake.arm()
            self._window, self._writer = window, writer
            why_not = window.start(self._give_way, self._names)
            if why_not is not None:
                self._clear_window()
                self._writer = None
                return why_not
            self._source.slowed_by_capture.begin(window.first)
            self._source.send_every_span(window.spans.add, window.spans.add_samples)
            writer.start((window.begin_ns - begin_ns) / NS_PER_S)
            atexit.register(self._at_exit)
        except BaseException:
            writer.drop()
            self._discard()
            self._writer = None
            self._source.slowed_by_capture.end(window.first)
            raise
        finally:
            self._is_moving = False
        self._opened += 1
        return None

    def _end(self) -> None:
        """Stop recording. Have the trace written unless the window is dropped or has no finished step."""
        self._schedule.interrupt()
        window, writer = self._window, self._writer
        if window is not None and writer is not None:
            self._is_moving = True
            is_kept = False
            try:
                if window.must_end in DROPS:
                    writer.drop()
                elif not window.ends_ns:
                    writer.drop(f"step {window.first} was not over {window.must_end}" if window.must_end else None)
                else:
                    begin_ns = self._clock()
                    window.stop()
                    stop_s = (self._clock() - begin_ns) / NS_PER_S
                    self._place(True)
                    writer.write(lambda: self._place(False), stop_s)
                    is_kept = True
            except BaseException:
                writer.drop()
                raise
            finally:
                if is_kept:
                    self._clear_window()
                else:
                    self._discard()
                self._is_moving = False
        self._ask_flush()

    def _discard(self) -> None:
        """Stop recording and discard the trace."""
        if self._window is not None:
            self._window.discard()
        self._source.send_every_span(None)
        self._clear_window()

    def _clear_window(self) -> None:
        self._window = None
        self._wake.disarm()
        atexit.unregister(self._at_exit)

    def _give_up(self) -> None:
        """Drop the window. If this thread cannot end it, ask the main thread."""
        if self._writer is not None:
            self._writer.drop()
        if self._window is not None and is_main_thread():
            self._discard()
        elif self._window is not None:
            self._window.end_early(LEFT)
            self._wake.ring()

    def _release_writer(self) -> TraceWriter | None:
        """Return the writer and forget it. Only the next step is still slowed."""
        writer, self._writer = self._writer, None
        if writer is not None:
            self._source.send_every_span(None)
            # Garbage collection after the window slows the next step.
            self._source.slowed_by_capture.end(self._steps + 1)
        return writer

    def _report_window(self) -> None:
        """Report the result of a window whose writer has ended."""
        writer = self._release_writer()
        if writer is not None and writer.must_report:
            begin_ns = self._clock()
            gc.collect()  # otherwise host memory grows with each window
            cleared_s = (self._clock() - begin_ns) / NS_PER_S
            self._schedule.interrupt()
            self._report(writer.line(cleared_s))
            self._schedule.went_well()
        self._update_is_on()

    # The main thread

    def _on_main_thread(self) -> None:
        """End a window that must, after a call of ``self._wake.ring``."""
        window = self._window
        if window is not None and window.must_end is not None and not self._is_moving and not is_in_backward():
            self._end_now(window)

    def _end_now(self, window: Window) -> None:
        self._guard(self._end)
        if self._window is window:  # the guard has disabled this part
            self.is_on = False
            self._give_up()

    def _give_way(self) -> None:
        """End the window: a profiler of the program is about to start on the calling thread."""
        window, writer = self._window, self._writer
        if window is None or writer is None or (is_main_thread() and self._is_moving):  # our own profiler
            return
        window.end_early(OTHERS)
        if is_main_thread():
            self._end_now(window)
        else:
            until_s = time.monotonic() + GIVE_WAY_S
            while self._window is window and time.monotonic() < until_s:
                self._wake.ring()
                time.sleep(0.01)
        if writer.must_report:  # it ended just before, or never opened
            return
        self._opened -= 1
        self._schedule.later(self._clock(), window.last - window.first + 1)
        self._report_once(f"{OTHERS} while a capture window was open: the window was dropped, and is tried again later")

    # The end of the run

    def close(self, ended_by: str | None) -> None:
        """End the open window at the end of the run. Keep it if the run ends normally."""
        self.is_on = False
        if ended_by == "SIGTERM":
            self._patience_s = HURRY_S
        window = self._window
        if window is None:
            return
        if ended_by is not None or not is_main_thread() or self._is_moving:
            window.end_early(LEFT)
        if is_main_thread() and not self._is_moving:
            self._end_now(window)
        else:  # another thread must stop it, or a signal interrupted the stop
            self._has_open_window = True
            if not is_main_thread():
                self._wake.ring()
        if window.must_end == LEFT or (not window.ends_ns and window.must_end is None):
            self._report(f"a capture window of step {window.first} on was dropped: {LEFT}")

    def wait_for_file(self) -> None:
        """Wait a moment for the last file and report it. Report windows that never opened."""
        writer = self._writer
        if writer is not None and not self._has_open_window:
            if self._place(True).run_folder is None:  # this rank never received a folder
                writer.call_off()
            writer.thread.join(self._patience_s)
            if writer.thread.is_alive():
                writer.call_off()
                writer.thread.join(1.0)
            self._release_writer()
            if writer.must_report:
                self._report(writer.line())
        for sentence in self._schedule.missed(self._steps, self._opened):
            self._report(sentence)

    def _at_exit(self) -> None:
        if not self.is_on:  # while the run continues, its end closes the window
            self._give_up()

    def notes(self) -> list[str]:
        """Return nothing: windows are reported when they end."""
        return []

    def after_fork_in_child(self) -> None:
        """Discard all state: it belongs to the parent process."""
        self.is_on = False
        window, self._window, self._writer = self._window, None, None
        self._source.send_every_span(None)
        if window is not None:
            self._wake.disarm()
            atexit.unregister(self._at_exit)
            window.after_fork_in_child()
        if self._has_recorded:
            end_past_destructors()
