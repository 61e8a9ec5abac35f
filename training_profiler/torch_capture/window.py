"""One window of deep capture: torch.profiler records between two ends of steps on the main thread.

The program's own profilers take precedence. Two active profilers of torch empty the outer one, and its export crashes
the process (torch 2.13). This also happens while one of them warms up. Torch has no query for a profiler that warms up,
so this module searches for its object.
"""

import contextlib
import ctypes
import gc
import os
import re
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from itertools import chain, count
from pathlib import Path
from typing import Any, Final

from training_profiler.base.backends import CUDA, find_accelerator
from training_profiler.base.sections import CLOCK_MARK
from training_profiler.instrumentation.patching import Patches
from training_profiler.recording.section import Clock
from training_profiler.torch_capture.trace_file import MARKS, CapturedSpans, WrittenSpan

STEP: Final = "ProfilerStep#"
MOST_TRIED: Final = 8  # signals
GRAPHS_SAFE_FROM: Final = 12, 6  # CUDA; before, torch's profiler may crash at its end if there are CUDA graphs
RECORDS: Final = "a profiler of the program's own records"
WARMS_UP: Final = "a profiler of the program's own warms up"
STARTS: Final = ("_prepare_profiler", "_enable_profiler")  # all of torch.autograd.profiler and torch.profiler call them


class Window:
    """Records from ``start`` to ``stop``.

    Args:
        first: its first step, counted from 1.
        last: its last step unless it ends early.
    """

    def __init__(self, torch: Any, clock: Clock, first: int, last: int) -> None:
        self.first, self.last = first, last
        self.ends_ns: list[int] = []  # of its steps
        self.must_end: str | None = None  # reason to end early
        self.marks: tuple[list[tuple[int, int]], list[tuple[int, int]]] = ([], [])
        self.begin_ns = 0
        self.spans: CapturedSpans  # from ``start`` on
        self.profile: Any = None
        self._torch, self._clock = torch, clock
        self._patches = Patches()

    @property
    def is_full(self) -> bool:
        """Whether its last step has ended."""
        return self.first + len(self.ends_ns) > self.last

    def start(self, give_way: Callable[[], None], names: Mapping[int, str]) -> str | None:
        """Start recording. ``give_way`` is called before any profiler starts, including this one.

        Returns:
            The reason if a profiler of the program is active, else None.
        """
        before_others_start(self._patches, self._torch, give_way)
        # Check after patching: a profiler that starts later on another thread calls ``give_way``.
        why_not = active_profiler(self._torch)
        if why_not is not None:
            self._patches.undo()
            return why_not
        profiler = self._torch.profiler
        self.profile = profiler.profile(activities=self._activities(), record_shapes=True, profile_memory=True)
        self.profile.start()
        self._mark(self.marks[0])
        self.begin_ns = self._clock()
        self.spans = CapturedSpans(names, self.begin_ns)
        return None

    def _activities(self) -> list[Any]:
        kinds = self._torch.profiler.ProfilerActivity
        activities = [kinds.CPU]
        accelerator = find_accelerator()  # supported_activities() would initialise an unused accelerator
        if accelerator is not None:
            kind = getattr(kinds, accelerator.backend.profiler_activity or "", None)
            if kind is not None and kind in self._torch.profiler.supported_activities():
                activities.append(kind)
        return activities

    def _mark(self, marks: list[tuple[int, int]]) -> None:
        for _ in range(MARKS):
            before_ns = self._clock()
            with self._torch.profiler.record_function(f"{CLOCK_MARK} {before_ns}"):
                pass
            marks.append((before_ns, self._clock()))

    def stop(self) -> None:
        """Stop recording. The trace can be written."""
        self.spans.ends(self.ends_ns[-1])
        self._mark(self.marks[1])
        try:
            self.profile.stop()
        finally:
            self._patches.undo()

    def discard(self) -> None:
        """Stop recording in any state and discard the trace."""
        if self.profile is not None:
            with contextlib.suppress(Exception):
                self.profile.stop()
            self.profile = None
        self._patches.undo()

    def after_fork_in_child(self) -> None:
        """Discard the window: it belongs to the parent process."""
        self._patches.undo()
        with contextlib.suppress(Exception):
            if self.profile is not None:
                if find_accelerator() is None and len(self.profile.activities) == 1:
                    self._torch.autograd.profiler._disable_profiler()
                else:  # stopping it would call the parent's accelerator driver
                    self._torch.autograd._enable_record_function(False)
                self._torch.autograd.profiler._run_on_profiler_stop()

    def end_early(self, why: str) -> None:
        """End the window with the next step or sooner. ``why`` completes "ended ..."."""
        self.must_end = why

    def begin_a_step_later(self) -> None:
        """Leave out the first step: it had ended before the window opened."""
        self.first, self.last = self.first + 1, self.last + 1

    def release_profile(self) -> None:
        """Free torch's recorded events."""
        self.profile = None

    def steps_as_spans(self) -> list[WrittenSpan]:
        """Return its steps with torch's name and the run's step numbers."""
        begins_ns = [self.begin_ns, *self.ends_ns[:-1]]
        return [
            WrittenSpan(f"{STEP}{number}", begin_ns, end_ns)
            for number, (begin_ns, end_ns) in enumerate(zip(begins_ns, self.ends_ns, strict=True), self.first)
        ]

    def file_name(self, rank: int, attempt: int) -> str:
        """Return the name of its trace file."""
        steps = f"step{self.first}-{self.first + len(self.ends_ns) - 1}"
        return f"{steps}-rank{rank}{f'-attempt{attempt}' if attempt else ''}.pt.trace.json.gz"


def free_name(folder: Path, name: str) -> Path:
    """Return ``folder/name``, with a number added if another process has written that file."""
    stem, _, ending = name.partition(".")
    names = chain([name], (f"{stem}-{number}.{ending}" for number in count(2)))
    return next(path for each in names if not os.path.lexists(path := folder / each))


class MainThreadInterrupt:
    """Runs a function on the main thread, between two of its instructions, on request of another thread.

    By an unused real-time signal with a handler while a window is open. Does nothing where signals are missing.
    """

    def __init__(self, work: Callable[[], None]) -> None:
        self._work = work
        self._number: int | None = None
        self._pid = 0
        self._sending = threading.Lock()  # a signal without a handler would end the process

    def arm(self) -> None:
        """Install the handler. Call it on the main thread."""
        last = getattr(signal, "SIGRTMAX", None)
        if last is None:  # macOS and Windows: limits are only checked at ends of steps
            return
        for number in range(int(last), int(last) - MOST_TRIED, -1):
            if signal.getsignal(number) == signal.SIG_DFL:
                signal.signal(number, self._handle)
                self._number, self._pid = number, os.getpid()
                return

    def ring(self) -> None:
        """Ask the main thread to do the work soon. Call it from any thread."""
        main = threading.main_thread().ident
        with self._sending:
            if self._number is not None and self._pid == os.getpid() and main is not None:
                signal.pthread_kill(main, self._number)

    def disarm(self) -> None:
        """Remove the handler. Call it on the main thread."""
        if self._pid != os.getpid():  # a thread that the forked child does not have may hold the lock
            self._sending = threading.Lock()
        if threading.current_thread() is not threading.main_thread():
            return
        with self._sending:
            number, self._number = self._number, None
        if number is not None:
            _let_pending_be_handled()
            if signal.getsignal(number) == self._handle:
                signal.signal(number, signal.SIG_IGN)  # ignore a pending signal
                signal.signal(number, signal.SIG_DFL)

    def _handle(self, signum: int, frame: Any) -> None:
        self._work()


def _let_pending_be_handled() -> None:
    """Let the interpreter run pending handlers, which it does when a function begins."""


def end_past_destructors() -> None:
    """End this forked process with its own status before the destructors of libraries run.

    After any use of torch.profiler the destructors wait for ever for a thread that the child lacks (torch 2.13).
    Python's own exit runs before. Children of multiprocessing skip the destructors.
    """
    with contextlib.suppress(Exception):
        libc = ctypes.CDLL(None)
        libc.on_exit(libc._exit, None)  # of glibc alone


def is_main_thread() -> bool:
    """Return whether this is the thread on which windows are opened and ended."""
    return threading.current_thread() is threading.main_thread()


def is_in_backward() -> bool:
    """Return whether this thread computes gradients: torch would restart a profiler stopped there."""
    core: Any = getattr(sys.modules.get("torch"), "_C", None)
    task = getattr(core, "_current_graph_task_id", None)  # private: may be gone
    return task is not None and task() != -1


def blocker(torch: Any) -> str | None:
    """Return why no window can open now; None if one can. Does not check for other profilers."""
    if torch is None or not hasattr(torch, "profiler"):
        return "torch is not imported"
    if not is_main_thread():
        # A profiler that still records at the end of its thread crashes the process.
        return "the training is not on the main thread"
    if is_in_backward():
        return "steps end within a backward pass, where torch would start again what is stopped"
    if torch.compiler.is_compiling():
        return "torch.compile is compiling"
    accelerator = find_accelerator()
    if accelerator is not None and accelerator.is_capturing():
        return "a graph of the accelerator is being recorded"
    return _graphs_blocker(torch)


def _graphs_blocker(torch: Any) -> str | None:
    """Return why no window can open if the program has CUDA graphs and an early CUDA; None otherwise."""
    version = re.match(r"(\d+)\.(\d+)", str(getattr(getattr(torch, "version", None), CUDA.kind, None)))
    graph = getattr(getattr(torch, CUDA.kind, None), "CUDAGraph", None)
    if version is None or graph is None or (int(version[1]), int(version[2])) >= GRAPHS_SAFE_FROM:
        return None
    if not any(issubclass(type(each), graph) for each in gc.get_referrers(*_with_subclasses(graph))):
        return None
    return f"the program has CUDA graphs, with which a recording may crash before CUDA 12.6 (this is {version[0]})"


def active_profiler(torch: Any) -> str | None:
    """Return which profiler of the program is active on any thread; None without one."""
    if getattr(torch.autograd.profiler, "_is_profiler_enabled", False):
        return RECORDS
    inner, outer = torch.autograd.profiler.profile, torch.profiler.profile
    # Instances refer to their class. Searching referrers takes a tenth of the time of searching all objects.
    referrers = gc.get_referrers(*_with_subclasses(inner), *_with_subclasses(outer))
    return WARMS_UP if any(_warms_up(instance, type(instance), inner, outer) for instance in referrers) else None


def _warms_up(instance: Any, kind: type, inner: type, outer: type) -> bool:
    # Not isinstance, which may run code of the object.
    if issubclass(kind, inner):
        return getattr(instance, "entered", False) and getattr(instance, "kineto_results", None) is None
    if issubclass(kind, outer) and getattr(instance, "acc_events", False):  # reuses its inner profiler
        action = getattr(instance, "current_action", None)
        return getattr(action, "name", "") == "WARMUP" and getattr(instance, "profiler", None) is not None
    return False


def _with_subclasses(kind: type) -> Iterator[type]:
    yield kind
    subclasses: list[type] = kind.__subclasses__()
    for subclass in subclasses:
        yield from _with_subclasses(subclass)


def before_others_start(patches: Patches, torch: Any, give_way: Callable[[], None]) -> None:
    """Call ``give_way`` right before a profiler of the program starts or warms up, until ``patches`` are undone.

    Raises:
        AttributeError: this version of torch has no such place.
    """

    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        def start(*args: Any, **kwargs: Any) -> Any:
            give_way()
            return original(*args, **kwargs)

        return start

    for name in STARTS:
        patches.replace(torch.autograd.profiler, name, make)
    legacy = getattr(torch.autograd, "profiler_legacy", None)
    if hasattr(legacy, "_enable_profiler_legacy"):
        patches.replace(legacy, "_enable_profiler_legacy", make)
