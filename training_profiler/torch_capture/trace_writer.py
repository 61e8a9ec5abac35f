"""The thread beside a window: sees to its limits while it is open, and writes its file after."""

import contextlib
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

from training_profiler.safety.background_thread import BackgroundThread
from training_profiler.safety.fault_guard import Guard
from training_profiler.torch_capture.plan import CapturePlan
from training_profiler.torch_capture.request import FOLDER
from training_profiler.torch_capture.schedule import CALLED_OFF
from training_profiler.torch_capture.trace_file import CaptureError, check_whole, write_trace
from training_profiler.torch_capture.window import Window, free_name
from training_profiler.units import BYTES_PER_GIB, NS_PER_S

LOOK_S: Final = 0.25  # between two looks at the limits
POLL_S: Final = 0.05


class OutputLocation(NamedTuple):
    """Where traces go, and whose they are."""

    run_folder: str | None  # None: not known yet
    rank: int
    attempt: int


PART: Final = "capture"


class TraceWriter:
    """Begins with the window: at the end of a process no thread can be started any more."""

    def __init__(self, window: Window, plan: CapturePlan, ring: Callable[[], None], guard: Guard) -> None:
        self.thread = BackgroundThread("capture", self._run, guard, PART)
        self.window, self.plan = window, plan
        self.path: Path | None = None  # of the file, when it is there
        self.bytes = 0
        self.export_s = 0.0
        self.held_s = 0.0  # the part of it in which torch lets no other Python code run
        self.begin_s = 0.0  # what the training waited for it to begin, and to end
        self.stop_s = 0.0
        self.median_ns: float | None = None  # of the steps outside
        self.error: str | None = None
        self.cleared_s: float | None = None  # what gc.collect() took after; None where it was not called
        self.is_told = True  # False: that there is no file was said
        self.why_dropped: str | None = None
        self._ring = ring
        self._is_over = threading.Event()
        self._is_called_off = False
        self._place: Callable[[], OutputLocation] | None = None

    def write(self, place: Callable[[], OutputLocation]) -> None:
        """Write what the window has recorded, as soon as ``place`` tells where to."""
        self._place = place
        self._is_over.set()

    def drop(self, why: str | None = None) -> None:
        """Write nothing; ``why`` is to be told yet, None where it was."""
        self.why_dropped = why
        self.is_told = why is not None
        self._is_over.set()

    def call_off(self) -> None:
        """Leave what is not written yet."""
        self._is_called_off = True
        self._is_over.set()

    def _run(self, thread: BackgroundThread) -> None:
        try:
            self._watch()
            if self._place is not None:
                self._write(self._place)
        except (CaptureError, OSError) as error:
            self.error = str(error)
        except Exception as error:
            self.error = f"{type(error).__name__}: {error}"
        finally:
            if self._place is not None:  # else it may still record, and is the main thread's to stop
                self.window.profile = None

    def _watch(self) -> None:
        before_bytes, begin_s = _resident_bytes(), time.monotonic()
        while not self._is_over.wait(LOOK_S):
            grown_bytes = _resident_bytes() - before_bytes
            if time.monotonic() - begin_s > self.plan.seconds:
                self.window.must_end = f"after {self.plan.seconds:g} s (seconds=)"
            elif grown_bytes > self.plan.memory_gib * BYTES_PER_GIB:
                self.window.must_end = f"when memory had grown by {self.plan.memory_gib:g} GiB (memory_gib=)"
            if self.window.must_end is not None:
                self._ring()

    def _write(self, ask: Callable[[], OutputLocation]) -> None:
        window, spans = self.window, self.window.spans
        while (place := ask()).run_folder is None:
            self._wait(None)
        folder = Path(str(place.run_folder)) / FOLDER
        folder.mkdir(exist_ok=True)
        name = window.file_name(place.rank, place.attempt)
        raw = free_name(folder, f"{name}.raw.part")
        try:
            begin_s = time.perf_counter()
            window.profile.export_chrome_trace(str(raw))
            self.held_s = time.perf_counter() - begin_s
            window.profile = None
            check_whole(raw)
            self._wait(None if spans is None else spans.is_complete)
            begin_s = time.perf_counter()
            told = [*window.steps_as_spans(), *(spans.spans() if spans is not None else [])]
            path, most_bytes = free_name(folder, name), self.plan.megabytes * 1e6
            self.bytes = write_trace(raw, path, told, window.marks, most_bytes, lambda: self._is_called_off)
            self.export_s = self.held_s + time.perf_counter() - begin_s
            self.path = path
        finally:
            for left in (raw, raw.with_name(f"{raw.name}.tmp")):  # as torch calls what it has not written to its end
                with contextlib.suppress(OSError):
                    left.unlink(missing_ok=True)

    def _wait(self, event: threading.Event | None) -> None:
        """Wait for ``event``, a moment without one."""
        if event is None:
            time.sleep(POLL_S)
        while self._is_called_off or (event is not None and not event.wait(POLL_S)):
            if self._is_called_off:
                raise CaptureError(CALLED_OFF)

    def line(self) -> str:
        """Return what is to be said of the window, which is written or never will be."""
        window = self.window
        if self.why_dropped is not None:
            return f"a capture window was dropped: {self.why_dropped}"
        steps = _steps(window.first, window.first + len(window.ends_ns) - 1)
        if self.path is None:
            return f"capture of {steps} failed, the training goes on: {self.error}"
        length_s = (window.ends_ns[-1] - window.begin_ns) / NS_PER_S
        parts = [f"captured {steps} in {length_s:.3f} s"]
        if window.must_end is not None:
            parts.append(f"ended {window.must_end}")
        if self.median_ns:
            ratio = length_s * NS_PER_S / len(window.ends_ns) / self.median_ns
            parts.append(f"steps took {ratio:.2f} times the median outside")
        parts.append(f"start {self.begin_s:.3f} s, stop {self.stop_s:.3f} s")
        parts.append(f"export {self.export_s:.3f} s (other Python code held for {self.held_s:.3f} s of it)")
        if self.cleared_s is not None:
            parts.append(f"clearing memory {self.cleared_s:.3f} s")
        parts.append(f"{self.bytes / 1e6:.2f} MB")
        left_out = window.spans.left_out if window.spans is not None else 0
        if left_out:
            parts.append(f"{left_out} sections left out of the trace")
        return f"{', '.join(parts)}; next: training-profiler trace {self.path.parent}"


def _resident_bytes() -> int:
    try:
        import psutil  # here, for all else does without

        return int(psutil.Process().memory_info().rss)
    except Exception:  # no figure, no limit
        return 0


def _steps(first: int, last: int) -> str:
    return f"step {first}" if first == last else f"steps {first}-{last}"
