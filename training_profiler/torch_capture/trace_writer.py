"""The thread beside a window: checks its limits while it is open and writes its file afterwards."""

import os
import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

from training_profiler.base.units import BYTES_PER_GIB, NS_PER_S
from training_profiler.safety.fault_guard import BackgroundThread, Guard
from training_profiler.safety.files import make_inner_folder, place_of
from training_profiler.torch_capture.plan import CapturePlan
from training_profiler.torch_capture.request import FOLDER
from training_profiler.torch_capture.trace_file import CaptureError, check_whole, write_trace
from training_profiler.torch_capture.window import Window, free_name

CHECK_S: Final = 0.25  # between two checks of the limits
POLL_S: Final = 0.05
PART: Final = "capture"
CALLED_OFF: Final = "the run ended before it was written"


class OutputLocation(NamedTuple):
    """Folder, rank and attempt of a trace."""

    run_folder: str | None  # None: not known yet
    rank: int
    attempt: int


class TraceWriter:
    """Writes the trace of one window. Its thread starts with the window: none can start at the end of a process."""

    def __init__(
        self,
        window: Window,
        plan: CapturePlan,
        ring: Callable[[], None],
        guard: Guard,
        median_ns: float | None = None,
    ) -> None:
        self.thread = BackgroundThread(PART, self._run, guard, PART)
        self.window, self.plan = window, plan
        self.path: Path | None = None  # of the written file
        self.bytes = 0
        self.export_s = 0.0
        self.held_s = 0.0  # the part of it in which torch holds the GIL
        self.begin_s = 0.0  # delay of the training at the start and the end of the window
        self.stop_s = 0.0
        self.median_ns = median_ns  # of the steps outside
        self.error: str | None = None
        self.must_report = True  # whether the result must still be reported
        self.why_dropped: str | None = None
        self._ring = ring
        self._is_over = threading.Event()
        self._is_called_off = False
        self._place: Callable[[], OutputLocation] | None = None

    def start(self, begin_s: float) -> None:
        """Start the thread. Opening the window took ``begin_s``."""
        self.begin_s = begin_s
        self.thread.start()

    def write(self, place: Callable[[], OutputLocation], stop_s: float) -> None:
        """Write the trace as soon as ``place`` returns a folder. Stopping the window took ``stop_s``."""
        self._place, self.stop_s = place, stop_s
        self._is_over.set()

    def drop(self, why: str | None = None) -> None:
        """Write nothing. ``why`` is the reason to report; None if it was reported."""
        self.why_dropped = why
        self.must_report = why is not None
        self._is_over.set()

    def call_off(self) -> None:
        """Stop writing."""
        self._is_called_off = True
        self._is_over.set()

    def _run(self, thread: BackgroundThread) -> None:
        try:
            self._check_limits()
            if self._place is not None:
                self._write(self._place)
        except (CaptureError, OSError) as error:
            self.error = str(error)
        except Exception as error:
            self.error = f"{type(error).__name__}: {error}"
        finally:
            if self._place is not None:  # otherwise only the main thread may stop it
                self.window.release_profile()

    def _check_limits(self) -> None:
        before_bytes, begin_s = _resident_bytes(), time.monotonic()
        while not self._is_over.wait(CHECK_S):
            grown_bytes = _resident_bytes() - before_bytes
            if time.monotonic() - begin_s > self.plan.seconds:
                self.window.end_early(f"after {self.plan.seconds:g} s (seconds=)")
            elif grown_bytes > self.plan.memory_gib * BYTES_PER_GIB:
                self.window.end_early(f"when memory had grown by {self.plan.memory_gib:g} GiB (memory_gib=)")
            if self.window.must_end is not None:
                self._ring()

    def _write(self, ask: Callable[[], OutputLocation]) -> None:
        while (place := ask()).run_folder is None:
            time.sleep(POLL_S)
            self._check_not_called_off()
        folder = Path(str(place.run_folder)) / FOLDER
        make_inner_folder(folder)
        draft = folder / f"raw-{os.urandom(8).hex()}"  # of this user alone, because torch follows links
        make_inner_folder(draft, 0o700)
        path = free_name(folder, self.window.file_name(place.rank, place.attempt))
        try:
            with place_of(draft / "trace.json") as raw, place_of(path) as final:
                self._write_trace(raw.path, final.path)
            self.path = path
        finally:
            with place_of(draft) as left:  # also what torch did not finish
                shutil.rmtree(left.name, ignore_errors=True, dir_fd=left.folder)

    def _write_trace(self, raw: Path, path: Path) -> None:
        window, spans = self.window, self.window.spans
        begin_s = time.perf_counter()
        window.profile.export_chrome_trace(str(raw))
        self.held_s = time.perf_counter() - begin_s
        window.release_profile()
        check_whole(raw)
        while not spans.is_complete.wait(POLL_S):
            self._check_not_called_off()
        begin_s = time.perf_counter()
        added = [*window.steps_as_spans(), *spans.written()]
        most_bytes = self.plan.megabytes * 1e6
        self.bytes = write_trace(raw, path, added, window.marks, most_bytes, lambda: self._is_called_off)
        self.export_s = self.held_s + time.perf_counter() - begin_s

    def _check_not_called_off(self) -> None:
        if self._is_called_off:
            raise CaptureError(CALLED_OFF)

    def line(self, cleared_s: float | None = None) -> str:
        """Return the message on a window that was written or failed; ``gc.collect()`` took ``cleared_s`` afterwards."""
        window = self.window
        if self.why_dropped is not None:
            return f"a capture window was dropped: {self.why_dropped}"
        steps = _steps(window.first, window.first + len(window.ends_ns) - 1)
        if self.path is None:
            return f"capture of {steps} failed, the training goes on: {self.error or CALLED_OFF}"
        length_s = (window.ends_ns[-1] - window.begin_ns) / NS_PER_S
        parts = [f"captured {steps} in {length_s:.3f} s"]
        if window.must_end is not None:
            parts.append(f"ended {window.must_end}")
        if self.median_ns:
            ratio = length_s * NS_PER_S / len(window.ends_ns) / self.median_ns
            parts.append(f"steps took {ratio:.2f} times the median outside")
        parts.append(f"start {self.begin_s:.3f} s, stop {self.stop_s:.3f} s")
        parts.append(f"export {self.export_s:.3f} s (other Python code held for {self.held_s:.3f} s of it)")
        if cleared_s is not None:
            parts.append(f"clearing memory {cleared_s:.3f} s")
        parts.append(f"{self.bytes / 1e6:.2f} MB")
        if window.spans.left_out:
            parts.append(f"{window.spans.left_out} sections left out of the trace")
        return f"{', '.join(parts)}; next: training-profiler trace {self.path.parent}"


def _resident_bytes() -> int:
    try:
        import psutil  # optional package, imported only here

        return int(psutil.Process().memory_info().rss)
    except Exception:  # without psutil there is no limit on memory
        return 0


def _steps(first: int, last: int) -> str:
    return f"step {first}" if first == last else f"steps {first}-{last}"
