"""Samples the lines that run before the run's session begins: from the import of torch to the first event."""

import atexit
import threading
from collections.abc import Callable, Sequence
from types import CodeType
from typing import Final

from training_profiler.base.units import NS_PER_S
from training_profiler.model.location import Location, Sample
from training_profiler.recording.section import Clock
from training_profiler.safety.background_thread import BackgroundThread, StopLock, closed_lock
from training_profiler.safety.cost_budget import SHARE
from training_profiler.safety.fault_guard import FaultGuard
from training_profiler.sampling.frames import StackOfThread
from training_profiler.sampling.stacks import Place, StackReader
from training_profiler.sampling.startup_frames import BEFORE_TORCH
from training_profiler.sampling.user_code import Places, UserCode, places_of_this_process

PART: Final = "startup sampler"
FULL_RATE_SHARE: Final = 0.001  # of the time so far between two samples: a process that never trains costs nothing
FIRST_SAMPLES: Final = 40  # at any cost; each reads code that none before it has read
LONGEST_PAUSE_S: Final = 0.25  # for the budget: a model that is made in a second has samples
PATIENCE_S: Final = 1.0

ImportOfTorch = tuple[int, Sequence[tuple[CodeType, int]]]  # when it began, and the stack, the innermost first


class KeptFrame:
    """The code and the instruction of a frame, and the one around it. The frame itself would keep objects alive."""

    def __init__(self, code: CodeType, instruction: int, back: "KeptFrame | None") -> None:
        self.f_code, self.f_lasti, self.f_back = code, instruction, back


class StartupSampler:
    """Samples the thread that makes it, ever more seldom, until ``stop``.

    Args:
        clock: the recorder's.
        begin_ns: when the process began.
        torch: when and where torch was imported; None is unknown.
        places: the paths of this process.
        new_stop: returns the lock that its thread sleeps on; None is one that hands over nothing.
    """

    def __init__(
        self,
        clock: Clock,
        begin_ns: int,
        torch: ImportOfTorch | None = None,
        places: Callable[[], Places] = places_of_this_process,
        new_stop: Callable[[], StopLock] | None = None,
    ) -> None:
        self._clock, self._begin_ns = clock, begin_ns
        self._sampled = StackOfThread(threading.get_ident())
        self._stacks = StackReader(UserCode(places()))
        self._seen: list[tuple[int, Place | None]] = []  # each stands for the time since the one before
        self._hz = 1
        self._imported_ns = None if torch is None else torch[0]
        if torch is not None:
            self._add_import(*torch)
        self._guard = FaultGuard()
        self._thread = BackgroundThread("startup", self._run, self._guard.run, PART, (new_stop or closed_lock)())

    def _add_import(self, import_ns: int, stack: Sequence[tuple[CodeType, int]]) -> None:
        frame = None
        for code, instruction in reversed(stack):
            frame = KeptFrame(code, instruction, frame)
        self._seen += [(import_ns, None), (self._clock(), self._stacks.place(frame))]

    def start(self, hz: int) -> None:
        """Sample at most ``hz`` times a second."""
        self._hz = max(1, hz)
        self._guard.run(PART, self._thread.start)
        atexit.register(self._thread.stop)

    @property
    def cpu_ns(self) -> int:
        """CPU time of its thread, in ns."""
        return self._thread.cpu_ns

    def stop(self) -> list[Sample]:
        """End the thread; return the samples since the process began, as many a second as there were at most."""
        atexit.unregister(self._thread.stop)
        self._thread.stop()
        if self._thread.is_alive():
            self._thread.join(PATIENCE_S)
        samples: list[Sample] = []
        from_ns = self._begin_ns
        before = Location("", 0, "", activity=BEFORE_TORCH)
        for until_ns, place in [*self._seen, (self._clock(), None)]:
            location = before if until_ns == self._imported_ns else None
            if place is not None:
                location = self._stacks.location(place)
            samples += [(ns, location) for ns in range(from_ns, until_ns, NS_PER_S // self._hz)]
            from_ns = max(from_ns, until_ns)
        return samples

    def _run(self, thread: BackgroundThread) -> None:
        begin_ns = self._clock()
        while not thread.wait_for_stop(self._pause_s(thread, (self._clock() - begin_ns) / NS_PER_S)):
            now_ns = self._clock()
            frame = self._sampled.frame()
            self._seen.append((now_ns, None if frame is None else self._stacks.place(frame)))
            del frame  # it would keep tensors alive until the next sample

    def _pause_s(self, thread: BackgroundThread, elapsed_s: float) -> float:
        pause_s = max(1 / self._hz, FULL_RATE_SHARE * elapsed_s)
        if len(self._seen) < FIRST_SAMPLES:
            return pause_s
        thread.measure_cpu()
        over_s = thread.cpu_ns / NS_PER_S / SHARE - elapsed_s
        return max(pause_s, min(LONGEST_PAUSE_S, over_s))
