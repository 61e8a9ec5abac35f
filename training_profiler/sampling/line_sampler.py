"""The line sampler: records many times a second the line of user code that the training thread runs."""

import atexit
import sys
import threading
from collections.abc import Callable, Sequence
from types import CodeType, FrameType
from typing import Any, Final

from training_profiler.base.startup_frames import BEFORE_TORCH
from training_profiler.base.units import NS_PER_S, time_text
from training_profiler.instrumentation.patching import Patches
from training_profiler.model.location import MOST_WAITING, Location, Sample
from training_profiler.safety.fault_guard import (
    SHARE,
    BackgroundThread,
    FaultGuard,
    Guard,
    Pace,
    StopLock,
    closed_lock,
    handed_over_ns,
    unlimited,
)
from training_profiler.sampling.frames import KeptFrame, StackOfThread
from training_profiler.sampling.lock_watch import LockWatch, has_gil, lock_watch
from training_profiler.sampling.stacks import Place, StackReader
from training_profiler.sampling.user_code import Places, UserCode, places_of_this_process

STARTUP_PART: Final = "startup sampler"
FULL_RATE_SHARE: Final = 0.001  # of the time so far between two samples: a process that never trains costs nothing
FIRST_STARTUP_SAMPLES: Final = 40  # at any cost; each reads code that none before it has read
LONGEST_PAUSE_S: Final = 0.25  # for the budget: a model that is made in a second has samples

ImportOfTorch = tuple[int, Sequence[tuple[CodeType, int]]]  # when it began, and the stack, the innermost first


class StartupSampler:
    """Samples the thread that makes it, ever more seldom, until ``stop``. The process began at ``begin_ns``."""

    def __init__(
        self,
        clock: Callable[[], int],
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
            frame = None
            for code, instruction in reversed(torch[1]):
                frame = KeptFrame(code, instruction, frame)
            self._seen += [(torch[0], None), (self._clock(), self._stacks.place(frame))]
        self._guard = FaultGuard()
        self._thread = BackgroundThread(
            "startup", self._run, self._guard.run, STARTUP_PART, (new_stop or closed_lock)()
        )

    def start(self, hz: int) -> None:
        """Sample at most ``hz`` times a second."""
        self._hz = max(1, hz)
        self._guard.run(STARTUP_PART, self._thread.start)
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
        if len(self._seen) < FIRST_STARTUP_SAMPLES:
            return pause_s
        thread.measure_cpu()
        over_s = thread.cpu_ns / NS_PER_S / SHARE - elapsed_s
        return max(pause_s, min(LONGEST_PAUSE_S, over_s))


# Longest wait of the sampler for the GIL, in s. With CPython's default of 5 ms most samples fall into large torch
# operations, which release the GIL. A Python function with 27 % of the time then has 1 % of the samples. With this
# value it has 25 % (benchmarks/line_sampler.py). Two busy Python threads become 1 to 3 % slower.
HANDOVER_S: Final = 0.0001


class SwitchInterval:
    """Shortens the interpreter's switch interval; the program goes on to read and set its own.

    If the program sets another value than it had, that value holds.
    """

    def __init__(self) -> None:
        self._programs_s: float | None = None  # what the program has set; None while nothing is shortened
        self._before_s = 0.0
        self._set: Any = None
        self._patches = Patches()

    def shorten(self) -> None:
        """Hand over the GIL soon, unless it is already, or there is none."""
        if self._programs_s is not None or not has_gil() or sys.getswitchinterval() <= HANDOVER_S:
            return
        self._programs_s = self._before_s = sys.getswitchinterval()
        self._set = sys.setswitchinterval
        self._set(HANDOVER_S)
        self._patches.replace(sys, "getswitchinterval", lambda original: self._get_programs)
        self._patches.replace(sys, "setswitchinterval", lambda original: self._set_programs)

    def restore(self) -> None:
        """Use the program's value again."""
        programs_s, self._programs_s = self._programs_s, None
        if programs_s is not None:
            self._patches.undo()
            self._set(programs_s)

    def _get_programs(self) -> float:
        return self._before_s if self._programs_s is None else self._programs_s

    def _set_programs(self, interval: float, /) -> None:
        self._set(interval)  # raises what it raises
        if self._programs_s is not None:
            self._programs_s = float(interval)
            if abs(self._programs_s - self._before_s) < 1e-9:  # as it was, often after something else for a moment
                self._set(HANDOVER_S)


PART: Final = "line sampler"
# A constant interval could synchronize with the training and sample the same line each time. Multiples of the golden
# ratio modulo 1 spread evenly and never repeat (Weyl). They vary the interval by 30 % without random numbers.
GOLDEN: Final = 0.6180339887498949
JITTER: Final = 0.3
FIRST_SAMPLES: Final = 300  # at any cost: the lines of a short run are of use, too
PATIENCE_S: Final = 1.0  # for the end of the thread, which takes microseconds


class LineSampler:
    """Samples the training thread from a thread of its own.

    A sample is a time and the innermost line of user code at that time. Its section and step are found later from the
    time, without work on the training thread.
    """

    def __init__(
        self,
        clock: Callable[[], int],
        guard: Guard,
        places: Callable[[], Places] = places_of_this_process,
        *,
        startup: StartupSampler | None = None,
        watch: Callable[[], LockWatch | None] = lock_watch,
        pace: Pace | None = None,
        new_stop: Callable[[], StopLock] | None = None,
    ) -> None:
        self.samples = 0
        self._sampled = StackOfThread(threading.get_ident())
        self._clock = clock
        self._guard = guard
        self._places = places
        self._pace = pace or unlimited()
        self._new_stop = new_stop
        self._stop: StopLock | None = None
        self._was_handed_over: Callable[[], bool] | None = None
        self._startup = startup
        self._early: list[Sample] = []  # of the time before this sampler started
        self._waiting: list[tuple[int, Place | None]] = []
        self._stacks: StackReader | None = None
        self._make_watch = watch
        self._watch: LockWatch | None = None
        self._hz = 0
        self._thread: BackgroundThread | None = None
        self._ended_cpu_ns = self._ended_wait_ns = 0  # of threads that have ended
        self._switch_interval = SwitchInterval()

    @property
    def cpu_ns(self) -> int:
        """CPU time that sampling took so far, in ns."""
        return self._ended_cpu_ns + (0 if self._thread is None else self._thread.cpu_ns)

    @property
    def handed_over_ns(self) -> int:
        """Time that the main thread waited for the sampler to take over the GIL, in ns; 0 if nothing measures it."""
        return self._ended_wait_ns + handed_over_ns(self._stop)

    def start(self, hz: int, since_ns: int) -> None:
        """Sample ``hz`` times a second from now on; 0 stops sampling. Never raises.

        The time from ``since_ns`` until now gets samples without a line. Otherwise later lines would get its share.
        """
        self._hz = hz
        if not hz:
            self._end_startup()
            self.close()
        elif self._thread is None:
            unseen: list[Sample] = [
                (ns, None) for ns in range(since_ns, self._clock(), NS_PER_S // hz)[: MOST_WAITING // 2]
            ]
            self._early = self._end_startup()[: MOST_WAITING // 2] or unseen
            self._guard(PART, self._start)

    def _end_startup(self) -> list[Sample]:
        startup, self._startup = self._startup, None
        return [] if startup is None else startup.stop()

    def sample_this_thread(self) -> None:
        """Sample the calling thread. Waiting samples of another thread lose their line."""
        if self._sampled.ident != threading.get_ident():
            self._sampled = StackOfThread(threading.get_ident())
            self._waiting = [(ns, None) for ns, _ in self._waiting]

    def pop_samples(self) -> list[Sample]:
        """Return the samples since the last call, in time order."""
        samples, self._waiting = self._waiting, []
        early, self._early = self._early, []
        stacks = self._stacks
        return early + [(ns, stacks.location(place) if stacks and place is not None else None) for ns, place in samples]

    def close(self) -> None:
        """End the thread and wait for it for at most ``PATIENCE_S``."""
        thread, self._thread = self._thread, None
        if thread is None:
            return
        thread.stop()
        thread.join(PATIENCE_S)
        self._ended_cpu_ns += thread.cpu_ns
        self._ended_wait_ns, self._stop = self.handed_over_ns, None
        self._switch_interval.restore()

    def after_fork_in_child(self) -> None:
        """Drop the thread: a forked child has none."""
        self._thread = None
        self._switch_interval.restore()

    def cost(self) -> str | None:
        """Return a sentence with the number of samples and their cost; None without samples."""
        if self._stacks is None:
            return None
        text = f"{PART}: {self.samples} samples, {time_text(self.cpu_ns / NS_PER_S)} of CPU"
        waited_s = self.handed_over_ns / NS_PER_S
        if self._new_stop is None and has_gil():
            text += "; without the C recorder, Python code between short operators is attributed to the following one"
        return f"{text}, for which the training waited {time_text(waited_s)}" if waited_s else text

    def _start(self) -> None:
        self._stacks = StackReader(UserCode(self._places()))
        self._watch = self._make_watch()
        self._stop = (self._new_stop or closed_lock)()
        self._was_handed_over = getattr(self._stop, "was_handed_over", None) if has_gil() else None
        thread = BackgroundThread("lines", self._run, self._guard, PART, self._stop)
        thread.start()
        self._thread = thread
        self._switch_interval.shorten()

    def _run(self, thread: BackgroundThread) -> None:
        phase = 0.5
        while not thread.wait_for_stop(self._pause_s(thread) * (1 + JITTER * (2 * phase - 1))):
            phase = (phase + GOLDEN) % 1
            self._sample()

    def _pause_s(self, thread: BackgroundThread) -> float:
        thread.measure_cpu()
        cost_ns = self._ended_cpu_ns + thread.cpu_ns + self.handed_over_ns
        return self._pace.pause_s(1 / max(1, self._hz), cost_ns, FIRST_SAMPLES)

    def _sample(self) -> None:
        # This thread holds the GIL from here on, so clock and frame show the same moment. No frame may outlive this
        # call: it would keep the tensors of a step alive.
        now_ns, stacks = self._clock(), self._stacks
        frame = self._sampled.frame()
        if frame is not None and stacks is not None and len(self._waiting) < MOST_WAITING and not stacks.is_ours(frame):
            place = self._place(stacks, frame)
            if place is not None and self._is_blocked():
                place = place._replace(is_blocked=True)
            self._waiting.append((now_ns, place))
            self.samples += 1

    def _is_blocked(self) -> bool:
        """Return whether the sampled thread had given up the GIL by itself; False if that is not known."""
        handed, watch = self._was_handed_over, self._watch
        if handed is None or watch is None or not watch.is_alone:  # others may have made it give that up
            return False
        return self._sampled.ident == threading.main_thread().ident and not handed()

    def _place(self, stacks: StackReader, frame: FrameType) -> Place | None:
        """Return the place of the sampled thread, with the line that has the lock if it waits for that."""
        watch = self._watch
        if watch is None:
            return stacks.place(frame)
        watch.look_begins(self._sampled.ident)
        place = stacks.place(frame)
        holder = watch.look_ends()
        held_at = None
        if place is not None and holder is not None:  # the innermost line of the user's, or its function in a library
            of_holder = StackOfThread(holder).frame()
            held = stacks.place(of_holder)
            held_at = stacks.function_of_thread(of_holder) if held is None else held.users
        watch.find_helpers()
        return place if place is None or held_at is None else place._replace(holder=held_at)
