"""Deep capture of one session: opens windows, ends them, and says what they cost."""

import atexit
import gc
import sys
import time
from collections.abc import Callable, Mapping
from typing import Final, Protocol

from training_profiler.recording.section import Clock
from training_profiler.safety.fault_guard import Guard
from training_profiler.torch_capture.conflicts import blocker, end_past_destructors, is_in_backward, is_main_thread
from training_profiler.torch_capture.main_thread_signal import MainThreadInterrupt
from training_profiler.torch_capture.plan import CapturePlan
from training_profiler.torch_capture.request import Request, RequestBox
from training_profiler.torch_capture.schedule import (
    CALLED_OFF,
    DROPS,
    ELSEWHERE,
    LEFT,
    OTHERS,
    CaptureMessages,
    RecentStepTimes,
    Schedule,
)
from training_profiler.torch_capture.trace_file import SpanBook, SpanSource
from training_profiler.torch_capture.trace_writer import PART, OutputLocation, TraceWriter
from training_profiler.torch_capture.window import Window
from training_profiler.units import NS_PER_S


class Recording:
    """One window at a time, opened and ended on the main thread; ``writer`` lives on until its file is told of.

    Args:
        woken: done by the main thread soon after ``wake`` has rung.
        at_exit: done at the end of the process, where a window is open.
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
        self.is_moving = False  # it is being opened or ended
        self._clock, self._source, self._names = clock, source, names
        self._at_exit = at_exit

    def open(self, window: Window, writer: TraceWriter, give_way: Callable[[], None], begin_ns: int) -> str | None:
        """Begin to record; the training waits since ``begin_ns``. Return why not, where others do."""
        self.is_moving = True
        try:
            self.wake.arm()
            self.window, self.writer = window, writer
            why_not = window.start(give_way)
            if why_not is not None:
                self._forget()
                self.writer = None
                return why_not
            self._source.disturbed.begin(window.first)
            book = SpanBook(self._names, window.begin_ns)
            window.keep_spans(book)
            self._source.send_every_span(book.add)
            writer.begin_s = (window.begin_ns - begin_ns) / NS_PER_S
            writer.thread.start()
            atexit.register(self._at_exit)
            return None
        except BaseException:
            writer.drop()
            self.discard()
            self.writer = None
            self._source.disturbed.end(window.first)
            raise
        finally:
            self.is_moving = False

    def end(self, place: Callable[[bool], OutputLocation]) -> None:
        """Record no more, and have what was recorded written, where steps have ended and nothing speaks against it."""
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
                writer.stop_s = (self._clock() - begin_ns) / NS_PER_S
                place(True)
                writer.write(lambda: place(False))
                is_kept = True
        except BaseException:
            writer.drop()
            raise
        finally:
            if is_kept:
                self._forget()
            else:
                self.discard()
            self.is_moving = False

    def discard(self) -> None:
        """Record no more, and forget what was recorded."""
        if self.window is not None:
            self.window.discard()
        self._source.send_every_span(None)
        self._forget()

    def _forget(self) -> None:
        self.window = None
        self.wake.disarm()
        atexit.unregister(self._at_exit)

    def give_up(self) -> None:
        """Drop it all, also where it cannot be ended by this thread."""
        if self.writer is not None:
            self.writer.drop()
        if self.window is not None and is_main_thread():
            self.discard()
        elif self.window is not None:
            self.window.must_end = LEFT
            self.wake.ring()

    def told(self, last_step: int) -> TraceWriter | None:
        """Return the writer, which has ended or is left alone, and be done with it; steps are slowed but one more."""
        writer, self.writer = self.writer, None
        if writer is not None:
            self._source.send_every_span(None)
            self._source.disturbed.end(last_step + 1)  # memory is cleared after it, and with it the caches
        return writer

    def after_fork_in_child(self) -> None:
        """Forget the window: it is the parent's."""
        window, self.window, self.writer = self.window, None, None
        self._source.send_every_span(None)
        if window is not None:
            self.wake.disarm()
            atexit.unregister(self._at_exit)
            window.after_fork_in_child()


class CaptureSettings(Protocol):
    """Settings of the run, of which only the plan is read."""

    @property
    def capture(self) -> CapturePlan:
        """When windows are to open."""


LOOK_NS: Final = NS_PER_S  # between two looks for a request
GIVE_WAY_S: Final = 30.0  # at most, for the main thread to end a window before a profiler starts on another
JOIN_S: Final = 20.0  # at most, for the last file at the end of a run
HURRY_S: Final = 5.0  # where SIGTERM ends it: who sends that kills before long


class Captures:
    """The windows of one session; all is called by the thread that trains, but ``wait_for_file``.

    Args:
        own: does work on the training thread, whose time is booked as the profiler's own.
        place: asked now and then; given True, the run folder is to be made where there is none.
        say: prints a line and keeps it for the report.
        source: where sections come from, and what is told which steps windows slow.
        plan: when windows are to open.
        ask_flush: has what is recorded summed up soon.
    """

    def __init__(
        self,
        clock: Clock,
        guard: Guard,
        own: Callable[[Callable[[], None]], None],
        place: Callable[[bool], OutputLocation],
        say: Callable[[str], None],
        source: SpanSource,
        names: Mapping[int, str],
        plan: CapturePlan,
        ask_flush: Callable[[], None],
    ) -> None:
        self._ask_flush = ask_flush
        self._clock, self._guard_part, self._own = clock, guard, own
        self._place, self._say = place, say
        self._messages = CaptureMessages(say)
        self._recording = Recording(clock, source, names, self._woken, self._at_exit)
        self._pace = RecentStepTimes()
        self._schedule = Schedule(plan, self._pace)
        self.is_on = not self._schedule.is_idle  # whether ends of steps are to be told
        self._box = RequestBox(time.time_ns())
        self._is_left = False  # the run ended while nothing could be done about a window
        self._has_recorded = False
        self._opened = 0  # windows, without those that gave way
        self._steps = 0
        self._patience_s = JOIN_S
        self._next_look_ns = 0

    def start(self) -> None:
        """Do nothing yet: windows open where steps end."""

    def reconfigure(self, settings: CaptureSettings) -> None:
        """Go on with another plan."""
        self._schedule.reconfigure(settings.capture)
        self._turn()

    def _turn(self) -> None:
        """Have ends of steps told where that is of use."""
        self.is_on = not self._schedule.is_idle or self._recording.writer is not None

    def _guard(self, work: Callable[[], None]) -> None:
        """Do ``work``; where it fails no window stays open, for nobody would end it any more."""

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

    def look(self, now_ns: int) -> None:
        """Look for a request, once a second."""
        if now_ns >= self._next_look_ns:
            self._next_look_ns = now_ns + LOOK_NS
            self._guard(self._look)

    def _look(self) -> None:
        place = self._place(False)
        request = self._box.look(place.run_folder)
        if request is not None and request.is_of(place.rank):
            self._take(request)

    def _take(self, request: Request) -> None:
        if self._opened >= self._plan.windows:
            self._messages.used_up(self._plan.windows, is_asked_for=True)
            return
        self._schedule.ask(request.steps)
        self._turn()

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
            self._pace.step_ended(now_ns)
        else:  # what it does beside must not make an outlier of a step
            self._pace.interrupt()
            if not writer.thread.is_alive():
                self._own(self._tell)
        length = self._schedule.due(step + 1, now_ns)
        if length and self._recording.writer is None:
            self._own(lambda: self._try(step + 1, length, now_ns))

    def _step_ended_in(self, window: Window, now_ns: int) -> None:
        if not is_main_thread():  # only the thread that started a profiler can stop it
            window.must_end = window.must_end or ELSEWHERE
            self._recording.wake.ring()
            return
        if now_ns <= window.begin_ns:  # what ends steps of a training that nobody edited may be sure of it late
            window.first, window.last = window.first + 1, window.last + 1
            return
        window.ends_ns.append(now_ns)
        if (window.is_full or window.must_end is not None) and not is_in_backward():
            self._own(self._end)

    def _try(self, step: int, length: int, now_ns: int) -> None:
        if self._opened >= self._plan.windows:
            self._schedule.done()
            self._messages.used_up(self._plan.windows, is_asked_for=False)
            return
        self._pace.interrupt()  # to find out what follows takes longer than many a step
        self._schedule.done()
        begin_ns = self._clock()  # the step's end may have been told late
        why_not = blocker(sys.modules.get("torch")) or self._open(step, length, begin_ns)
        if why_not is not None:
            self._schedule.later(now_ns, length)
            self._messages.none_now(why_not)

    def _open(self, step: int, length: int, begin_ns: int) -> str | None:
        window = Window(sys.modules["torch"], self._clock, step, step + length - 1)
        writer = TraceWriter(window, self._plan, self._recording.wake.ring, self._guard_part)
        writer.median_ns = self._pace.median_ns
        self._has_recorded = True  # somebody has: also where others do
        why_not = self._recording.open(window, writer, self._give_way, begin_ns)
        self._opened += why_not is None
        return why_not

    def _end(self) -> None:
        self._pace.interrupt()
        self._recording.end(self._place)
        self._ask_flush()

    def _tell(self) -> None:
        """Say what became of a window whose writer has ended."""
        writer = self._recording.told(self._steps)
        if writer is not None and writer.is_told:
            begin_ns = self._clock()
            gc.collect()  # memory of the host grows from window to window without
            writer.cleared_s = (self._clock() - begin_ns) / NS_PER_S
            self._pace.interrupt()
            self._say(writer.line())
            self._schedule.went_well()
        self._turn()

    def _woken(self) -> None:
        window, is_moving = self._recording.window, self._recording.is_moving
        if window is not None and window.must_end is not None and not is_moving and not is_in_backward():
            self._end_now(window)

    def _end_now(self, window: Window) -> None:
        self._guard(self._end)
        if self._recording.window is window:  # this part of us was switched off
            self._give_up()

    def _give_way(self) -> None:
        """End the window, for a profiler of the program's is about to start on the calling thread."""
        window, writer = self._recording.window, self._recording.writer
        if window is None or writer is None or (is_main_thread() and self._recording.is_moving):  # it is ours
            return
        window.must_end = OTHERS
        if is_main_thread():
            self._end_now(window)
        else:
            until_s = time.monotonic() + GIVE_WAY_S
            while self._recording.window is window and time.monotonic() < until_s:
                self._recording.wake.ring()
                time.sleep(0.01)
        if writer.is_told:  # it was over just before, or has not opened
            return
        self._opened -= 1
        self._schedule.later(self._clock(), window.last - window.first + 1)
        self._messages.gave_way()

    def close(self, ended_by: str | None) -> None:
        """End the window that is open, for the run ends: it is kept where that is no accident."""
        self.is_on = False
        if ended_by == "SIGTERM":
            self._patience_s = HURRY_S
        window = self._recording.window
        if window is None:
            return
        if ended_by is not None or not is_main_thread() or self._recording.is_moving:
            window.must_end = LEFT
        if is_main_thread() and not self._recording.is_moving:
            self._end_now(window)
        else:  # the thread that started it is to stop it; or a signal came while that was doing just this
            self._is_left = True
            if not is_main_thread():
                self._recording.wake.ring()
        if window.must_end == LEFT or (not window.ends_ns and window.must_end is None):
            self._say(f"a capture window of step {window.first} on was dropped: {LEFT}")

    def wait_for_file(self) -> None:
        """Wait for the last file, a moment, and say what became of it; and of windows that never opened."""
        if not self._is_left:
            self._wait_for_file()
        for sentence in self._schedule.missed(self._steps, self._opened):
            self._say(sentence)

    def _wait_for_file(self) -> None:
        writer = self._recording.writer
        if writer is not None:
            if self._place(True).run_folder is None:  # of a rank that heard of none
                writer.call_off()
            writer.thread.join(self._patience_s)
            if writer.thread.is_alive():
                writer.call_off()
                writer.thread.join(1.0)
            self._recording.told(self._steps)
            if writer.is_told:
                if writer.path is None and writer.error is None:
                    writer.error = CALLED_OFF
                self._say(writer.line())

    def _at_exit(self) -> None:
        if not self.is_on:  # else the run has not ended yet, and will end it
            self._recording.give_up()

    def notes(self) -> list[str]:
        """Return nothing: what became of windows is reported when it happens."""
        return []

    def after_fork_in_child(self) -> None:
        """Forget it all: in a forked child it is the parent's."""
        self.is_on = False
        self._recording.after_fork_in_child()
        if self._has_recorded:
            end_past_destructors()
