"""The window that is open, with all that is begun and ended with it."""

import atexit
from collections.abc import Callable, Mapping

from training_profiler.capture.obstacles import is_main_thread
from training_profiler.capture.sayings import DROPS, LEFT
from training_profiler.capture.spans import SpanBook, SpanSource
from training_profiler.capture.wake import Wake
from training_profiler.capture.window import Window
from training_profiler.capture.writer import Place, Writer
from training_profiler.record.section import Clock
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
        self.writer: Writer | None = None
        self.wake = Wake(woken)
        self.is_moving = False  # it is being opened or ended
        self._clock, self._source, self._names = clock, source, names
        self._at_exit = at_exit

    def open(self, window: Window, writer: Writer, give_way: Callable[[], None], begin_ns: int) -> str | None:
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
            book = window.spans = SpanBook(self._names, window.begin_ns)
            self._source.on_every_span = book.add
            writer.begin_s = (window.begin_ns - begin_ns) / NS_PER_S
            writer.start()
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

    def end(self, place: Callable[[bool], Place]) -> None:
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
        self._source.on_every_span = None
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

    def told(self, last_step: int) -> Writer | None:
        """Return the writer, which has ended or is left alone, and be done with it; steps are slowed but one more."""
        writer, self.writer = self.writer, None
        if writer is not None:
            self._source.on_every_span = None
            self._source.disturbed.end(last_step + 1)  # memory is cleared after it, and with it the caches
        return writer

    def abandon(self) -> None:
        """Forget it in a forked child."""
        window, self.window, self.writer = self.window, None, None
        self._source.on_every_span = None
        if window is not None:
            self.wake.disarm()
            atexit.unregister(self._at_exit)
            window.abandon()
