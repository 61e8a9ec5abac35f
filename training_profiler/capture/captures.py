"""Deep capture of one session: opens windows, ends them, and says what they cost."""

import atexit
import gc
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any, Final

from training_profiler.capture.forked import end_past_destructors
from training_profiler.capture.obstacles import obstacle
from training_profiler.capture.pace import Pace
from training_profiler.capture.plan import CapturePlan
from training_profiler.capture.request import Request, RequestBox
from training_profiler.capture.schedule import Schedule
from training_profiler.capture.spans import SpanBook, SpanSource
from training_profiler.capture.wake import Wake
from training_profiler.capture.window import Window
from training_profiler.capture.writer import Place, Writer
from training_profiler.record.section import Clock
from training_profiler.units import NS_PER_S

PART: Final = "capture"
LOOK_NS: Final = NS_PER_S  # between two looks for a request
GIVE_WAY_S: Final = 30.0  # at most, for the main thread to end a window before a profiler starts on another
JOIN_S: Final = 20.0  # at most, for the last file at the end of a run
OTHERS: Final = "a profiler of the program's own began"


class Captures:
    """The windows of one session; all is called by the thread that trains, but ``finish``.

    Args:
        own_time: what the training thread does in it is the profiler's own.
        place: asked now and then; given True, the run folder is to be made where there is none.
        say: prints a line and keeps it for the report.
        source: where sections come from.
    """

    def __init__(
        self,
        clock: Clock,
        guard: Callable[[str, Callable[[], None]], None],
        own_time: Callable[[], AbstractContextManager[object]],
        place: Callable[[bool], Place],
        say: Callable[[str], None],
        source: SpanSource,
        names: Mapping[int, str],
    ) -> None:
        self.is_on = False  # whether ends of steps are to be told
        self.ask_flush: Callable[[], None] = _nothing  # has what is recorded summed up soon
        self._clock, self._guard, self._own_time = clock, guard, own_time
        self._place, self._say = place, say
        self._source, self._names = source, names
        self._pace = Pace()
        self._schedule = Schedule(CapturePlan(), self._pace)
        self._box = RequestBox(time.time_ns())
        self._window: Window | None = None
        self._writer: Writer | None = None
        self._wake = Wake(self._woken)
        self._is_moving = False  # a window is being opened or ended
        self._is_left = False  # the run ended on another thread while a window was open
        self._opened = 0
        self._next_look_ns = 0
        self._said: set[str] = set()

    def adopt(self, plan: CapturePlan) -> None:
        """Go on with another plan."""
        self._schedule.plan = plan
        self._turn()

    def _turn(self) -> None:
        """Have ends of steps told where that is of use."""
        self.is_on = not self._schedule.is_idle or self._window is not None or self._writer is not None

    @property
    def _plan(self) -> CapturePlan:
        return self._schedule.plan

    def look(self, now_ns: int) -> None:
        """Look for a request, once a second."""
        if now_ns >= self._next_look_ns:
            self._next_look_ns = now_ns + LOOK_NS
            self._guard(PART, self._look)

    def _look(self) -> None:
        place = self._place(False)
        request = self._box.look(place.run_folder)
        if request is not None and request.is_of(place.rank):
            self._take(request)

    def _take(self, request: Request) -> None:
        if self._opened >= self._plan.windows:
            self._say(
                f"a capture was asked for, but the {self._plan.windows} windows of the run are used up (windows=)"
            )
            return
        self._schedule.ask(request.steps)
        self._turn()

    def step_ended(self, step: int, now_ns: int) -> None:
        """Note that step ``step``, counted from 1, has ended; call it where ``is_on``."""
        self._guard(PART, lambda: self._step_ended(step, now_ns))

    def _step_ended(self, step: int, now_ns: int) -> None:
        window = self._window
        if window is not None:
            window.ends_ns.append(now_ns)
            if (window.is_full or window.must_end is not None) and not _is_in_backward():
                with self._own_time():
                    self._end(is_kept=window.must_end != OTHERS)
            return
        if self._writer is None:
            self._pace.step_ended(now_ns)
        else:  # what it does beside must not make an outlier of a step
            self._pace.interrupt()
            if not self._writer.is_alive():
                with self._own_time():
                    self._tell()
        length = self._schedule.due(step + 1, now_ns)
        if length and self._writer is None:
            with self._own_time():
                self._try(step + 1, length, now_ns)

    def _try(self, step: int, length: int, now_ns: int) -> None:
        if self._opened >= self._plan.windows:
            self._schedule.done()
            self._say_once(f"no further capture windows: {self._plan.windows} were opened (windows=)")
            return
        why_not = obstacle(sys.modules.get("torch"))
        if why_not is not None:
            self._schedule.later(now_ns)
            self._say_once(f"no capture window now, tried again later: {why_not}")
            return
        self._schedule.done()
        self._open(step, length, now_ns)

    def _open(self, step: int, length: int, now_ns: int) -> None:
        window = Window(sys.modules["torch"], self._clock, step, step + length - 1)
        writer = Writer(window, self._plan, self._wake.ring)
        writer.median_ns = self._pace.median_ns
        self._opened += 1
        self._is_moving = True
        try:
            self._wake.arm()
            self._window, self._writer = window, writer
            window.start(self._give_way)
            book = window.spans = SpanBook(self._names, window.begin_ns)
            self._source.on_every_span = book.add
            writer.begin_s = (window.begin_ns - now_ns) / NS_PER_S
            writer.start()
            atexit.register(self._at_exit)
        except BaseException:
            self._forget(window)
            self._writer = None
            raise
        finally:
            self._is_moving = False

    def _end(self, is_kept: bool) -> None:
        """End the window; on the main thread."""
        window, writer = self._window, self._writer
        if window is None or writer is None:
            return
        self._is_moving = True
        try:
            is_kept = is_kept and bool(window.ends_ns)
            if not is_kept:
                writer.drop()
                return
            begin_ns = self._clock()
            if window.spans is not None:
                window.spans.ends(window.ends_ns[-1])
            window.stop()
            writer.stop_s = (self._clock() - begin_ns) / NS_PER_S
            self._place(True)
            writer.write(lambda: self._place(False))
            self.ask_flush()
        except BaseException:
            writer.drop()
            is_kept = False
            raise
        finally:
            self._forget(window, is_kept)
            self._is_moving = False

    def _forget(self, window: Window, is_kept: bool = False) -> None:
        if not is_kept:
            window.discard()
            self._source.on_every_span = None
        self._window = None
        self._wake.disarm()
        atexit.unregister(self._at_exit)
        self._pace.interrupt()

    def _tell(self) -> None:
        """Say what became of a window whose writer has ended."""
        writer, self._writer = self._writer, None
        if writer is None:
            return
        self._source.on_every_span = None
        if writer.is_told:
            gc.collect()  # memory of the host grows from window to window without
            self._pace.interrupt()
            self._say(writer.line())
            self._schedule.went_well()
        self._turn()

    def _woken(self) -> None:
        window = self._window
        if window is not None and window.must_end is not None and not self._is_moving and not _is_in_backward():
            self._guard(PART, lambda: self._end(is_kept=window.must_end != OTHERS))

    def _give_way(self) -> None:
        """End the window, for a profiler of the program's is about to start on the calling thread."""
        window = self._window
        if window is None:
            return
        window.must_end = OTHERS
        if threading.current_thread() is threading.main_thread():
            self._guard(PART, lambda: self._end(is_kept=False))
        else:
            until_s = time.monotonic() + GIVE_WAY_S
            while self._window is window and time.monotonic() < until_s:
                self._wake.ring()
                time.sleep(0.01)
        self._schedule.later(self._clock(), window.last - window.first + 1)
        self._say_once(f"{OTHERS} while a capture window was open: the window was dropped, and is tried again later")

    def _say_once(self, sentence: str) -> None:
        if sentence not in self._said:
            self._said.add(sentence)
            self._say(sentence)

    def stop(self, ended_by: str | None) -> None:
        """End the window that is open, for the run ends: it is kept where that is no accident."""
        self.is_on = False
        window = self._window
        if window is None:
            return
        if threading.current_thread() is not threading.main_thread():
            self._is_left = True  # only the thread that started a profiler can stop it
        elif not self._is_moving:
            self._guard(PART, lambda: self._end(is_kept=ended_by is None))
            if ended_by is not None or not window.ends_ns:
                self._say(f"a capture window of step {window.first} on was dropped: the run ended in it")

    def finish(self) -> None:
        """Wait for the last file, a moment, and say what became of it."""
        writer = self._writer
        if writer is None or self._is_left:
            return
        if self._place(True).run_folder is None:  # of a rank that heard of none
            writer.call_off()
        writer.join(JOIN_S)
        if writer.is_alive():
            writer.call_off()
            writer.join(1.0)
        self._source.on_every_span = None
        if writer.is_told:
            if writer.path is None and writer.error is None:
                writer.error = "the run ended before it was written"
            self._say(writer.line())
        self._writer = None

    def _at_exit(self) -> None:
        window = self._window
        if self._is_left and window is not None:
            if self._writer is not None:
                self._writer.drop()
            self._forget(window)

    def abandon(self) -> None:
        """Forget it all in a forked child."""
        self.is_on = False
        window, self._window, self._writer = self._window, None, None
        self._source.on_every_span = None
        if window is not None:
            self._wake.disarm()
            atexit.unregister(self._at_exit)
            window.abandon()
        if self._opened:
            end_past_destructors()


def _is_in_backward() -> bool:
    """Return whether gradients are being computed on this thread: what is stopped there torch starts again after."""
    core: Any = getattr(sys.modules.get("torch"), "_C", None)
    task = getattr(core, "_current_graph_task_id", None)  # private: may be gone
    return task is not None and task() != -1


def _nothing() -> None:
    pass
