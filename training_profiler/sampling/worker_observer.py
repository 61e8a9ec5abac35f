"""Observes one worker from inside: a thread samples its main thread, and torch's fetches are timed."""

import functools
import multiprocessing
import os
import sys
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from types import CodeType
from typing import Any, Final

from training_profiler.base.units import NS_PER_S
from training_profiler.instrumentation.patching import Patches
from training_profiler.instrumentation.repeated_samples import PassPrints
from training_profiler.model.loader_workers import (
    HAND_OVER,
    IDLE,
    STARTING,
    TRANSFORM,
    WorkerMemory,
    WorkerSums,
    largest_lines,
)
from training_profiler.model.location import Location
from training_profiler.recording.tracebacks import hide_our_frames
from training_profiler.safety.fault_guard import BackgroundThread, FaultGuard, StopLock, closed_lock, handed_over_ns
from training_profiler.sampling.batch_phases import PhaseReader
from training_profiler.sampling.frames import Frame, current_frames, outwards
from training_profiler.sampling.line_sampler import GOLDEN, JITTER, SwitchInterval
from training_profiler.sampling.loader_workers import Mailbox
from training_profiler.sampling.run_queue import RunQueue
from training_profiler.sampling.stacks import StackReader
from training_profiler.sampling.user_code import (
    Places,
    UserCode,
    function_name,
    is_own_file,
    line_of,
    places_of_this_process,
)

_FETCH: Final = "/torch/utils/data/_utils/fetch.py"
_QUEUES: Final = ("/multiprocessing/queues.py", "/multiprocess/queues.py")
_PICKLING: Final = ("/multiprocessing/reduction.py", "/multiprocess/reduction.py")
_FEEDS: Final = "_feed"  # of a queue's thread, which pickles what was put
MOST_FRAMES: Final = 1000


Seen = tuple[str, Location | None]  # the phase and the line that one sample shows


class WorkerStackReader:
    """Reads the stacks of a worker. What is below torch's ``loop`` on them belongs to the training. Not thread-safe."""

    def __init__(self, loop: CodeType, places: Callable[[], Places] = places_of_this_process) -> None:
        self._loop, self._users = loop, UserCode(places())
        self._stacks, self._phases = StackReader(self._users), PhaseReader()

    def read(self, frames: Mapping[int, Frame], main_thread: int) -> Seen | None:
        """Return what the innermost frames of all threads show; None while the worker is not in its loop.

        A queue's thread hands batches over beside the main thread. That counts where the main thread has nothing to do.
        """
        stack = self._in_loop(frames.get(main_thread))
        if stack is None:
            return None
        seen = self._main(stack)
        if seen[0] == IDLE and any(_is_pickling(frame) for thread, frame in frames.items() if thread != main_thread):
            return HAND_OVER, None
        return seen

    def _in_loop(self, frame: Frame | None) -> list[Frame] | None:
        """Return the frames inside of the loop, the innermost first."""
        stack: list[Frame] = []
        for each in outwards(frame, MOST_FRAMES):
            if each.f_code is self._loop:
                return stack
            if not is_own_file(each.f_code.co_filename):
                stack.append(each)
        return None

    def _main(self, stack: list[Frame]) -> Seen:
        if not stack or _path(stack[-1]).endswith(_QUEUES):
            is_putting = bool(stack) and stack[-1].f_code.co_name == "put"
            return HAND_OVER if is_putting else IDLE, None
        fetch = next((at for at, frame in enumerate(stack) if _path(frame).endswith(_FETCH)), None)
        calls = [(frame.f_code, frame.f_lasti) for frame in stack[: None if fetch is None else fetch + 1]]
        phase = STARTING if fetch is None else self._phases.phase_of(calls[:-1], calls[-1])
        return phase, self._location(stack, has_inside=phase == TRANSFORM)  # several transforms may share a line

    def _location(self, stack: list[Frame], has_inside: bool) -> Location | None:
        """Return the innermost line of the user's code, or the first and last line of a library without one."""
        place = self._stacks.place(stack[0], until=self._loop)
        if place is not None:
            location = self._stacks.location(place)
            return location if location is None or has_inside else location.alone()
        named = [(frame, name) for frame in stack if (name := self._library(frame.f_code.co_filename))]
        if not named:
            return None
        # torch's own frames only pass a call on, unless there are no others.
        named = [each for each in named if not each[1].startswith("torch/utils/data/_utils/")] or named[-1:]
        (outer, outer_name), (inner, inner_name) = named[-1], named[0]
        text = f"{inner_name}:{line_of(inner.f_code, inner.f_lasti)} {function_name(inner.f_code)}"
        line, function = line_of(outer.f_code, outer.f_lasti), function_name(outer.f_code)
        return Location(outer_name, line, function, inside="" if inner is outer else text)

    def _library(self, filename: str) -> str | None:
        torch = filename.rpartition(f"{os.sep}torch{os.sep}")[2] if f"{os.sep}torch{os.sep}" in filename else ""
        return f"torch/{torch}" if torch else self._users.shown_library(filename)


def _path(frame: Frame) -> str:
    return frame.f_code.co_filename.replace("\\", "/")


def _is_pickling(frame: Frame | None) -> bool:
    """Return whether a thread of a queue pickles; waiting is not work."""
    is_pickling = False
    for each in outwards(frame, MOST_FRAMES):
        path = _path(each)
        is_pickling |= path.endswith(_PICKLING)
        if each.f_code.co_name == _FEEDS and path.endswith(_QUEUES):
            return is_pickling
    return False


PART: Final = "worker sampler"
EVERY_S: Final = 0.2  # between two samples
FIRST_EVERY_S: Final = 0.05  # the same of the first ones: a worker may live for an epoch of seconds
FIRST_SAMPLES: Final = 60
MOST_COST: Final = 0.001  # of the time, in CPU time of the sampling thread; where it costs more, it samples more seldom
FIRST_COST: Final = 0.005  # the same of the first samples
COSTS: Final = 4  # of the latest samples; the smallest is the usual one
SEND_S: Final = 2.0  # between two writings; the first ones follow sooner
FIRST_SEND_S: Final = 0.5
LAST_WORD_S: Final = 0.2  # the longest that the end of a worker waits for the last writing
MOST_LINES: Final = 2000  # kept until the next writing
_OF_STREAMS: Final = "_IterableDatasetFetcher"
_FETCHERS: Final = ("_MapDatasetFetcher", _OF_STREAMS)


class FetchTimes:
    """The batches of a worker, timed on its main thread."""

    def __init__(self, clock: Callable[[], int] = time.perf_counter_ns) -> None:
        self.batches = self.fetch_ns = self.slowest_ns = 0
        self.began_ns = 0  # the first fetch; 0 before
        self.began_cpu_ns = 0
        self.prints = PassPrints(clock)
        self._clock = clock
        self._since_ns = 0  # of the fetch under way; 0 without one

    def timed(self, original: Any, is_of_stream: bool = False) -> Any:
        """Return ``fetch`` of a fetcher of torch's, timed; samples of a stream are compared with other workers'."""
        clock, prints = self._clock, self.prints

        @functools.wraps(original)
        def fetch(*args: Any, **kwargs: Any) -> Any:
            begin_ns = self._since_ns = clock()
            if not self.began_ns:
                self.began_ns, self.began_cpu_ns = begin_ns, _cpu_ns()
            try:
                batch = original(*args, **kwargs)
            except BaseException as error:
                self._since_ns = 0
                self.fetch_ns += clock() - begin_ns
                if isinstance(error, StopIteration):
                    prints.end()
                hide_our_frames(error)
                raise
            spent_ns, self._since_ns = clock() - begin_ns, 0
            self.fetch_ns += spent_ns
            self.batches += 1
            if spent_ns > self.slowest_ns:
                self.slowest_ns = spent_ns
            if is_of_stream:
                prints.add(args[0], batch)
            return batch

        return fetch

    def so_far_ns(self, now_ns: int) -> int:
        """Return the time of all fetches, with the one under way."""
        since_ns = self._since_ns
        return self.fetch_ns + (now_ns - since_ns if since_ns else 0)


class WorkerObserver:
    """Samples the thread that makes it until ``stop``, and writes what it saw to ``mailbox``."""

    def __init__(
        self,
        loop: CodeType,
        mailbox: Mailbox,
        clock: Callable[[], int] = time.perf_counter_ns,
        new_stop: Callable[[], StopLock] | None = None,
    ) -> None:
        self.times = FetchTimes(clock)
        self._mailbox, self._clock, self._pid = mailbox, clock, os.getpid()
        self._stacks = WorkerStackReader(loop)
        self._samples: Counter[tuple[str, str, int, str, str]] = Counter()
        self._idle = self._looks = 0
        self._costs_ns: deque[int] = deque(maxlen=COSTS)
        self._main = threading.get_ident()
        self._queue, self._queued_ns = RunQueue(python_threads=list), 0
        self._memory: WorkerMemory | None = None
        self._copied = CopiedMemory()
        self._patches, self._switch_interval = Patches(), SwitchInterval()
        self._guard = FaultGuard()
        self._stop = (new_stop or closed_lock)()
        self._thread = BackgroundThread("worker", self._run, self._guard.run, PART, self._stop)

    def start(self) -> None:
        """Start the thread, and time the fetches of this process.

        Raises:
            RuntimeError: no thread can be started.
        """
        self._copied.look()
        self._thread.start()
        fetch = sys.modules.get("torch.utils.data._utils.fetch")
        for name in _FETCHERS:
            if hasattr(fetch, name):  # private: may be gone
                timed = functools.partial(self.times.timed, is_of_stream=name == _OF_STREAMS)
                self._patches.replace(getattr(fetch, name), "fetch", timed)
        self._switch_interval.shorten()

    def stop(self) -> None:
        """End the thread, which writes a last time; wait for it at most ``LAST_WORD_S``."""
        if os.getpid() != self._pid:  # a fork of the worker, which has no such thread
            return
        self._switch_interval.restore()
        self._patches.undo()
        self._thread.stop()
        if self._thread.is_alive():
            self._thread.join(LAST_WORD_S)

    def _run(self, thread: BackgroundThread) -> None:
        phase, pause_s, waited_ns = 0.5, FIRST_SEND_S, 0
        next_write_ns = self._clock() + int(pause_s * NS_PER_S)
        self._queue.read()
        while not thread.wait_for_stop(self._pause_s() * (1 + JITTER * (2 * phase - 1))):
            phase = (phase + GOLDEN) % 1
            begin_ns, before_ns = time.thread_time_ns(), waited_ns
            self.sample()
            waited_ns = handed_over_ns(self._stop)
            self._costs_ns.append(time.thread_time_ns() - begin_ns + waited_ns - before_ns)
            self._looks += 1
            if self._clock() >= next_write_ns:
                self._write(thread)
                pause_s = min(SEND_S, 2 * pause_s)
                next_write_ns = self._clock() + int(pause_s * NS_PER_S)
        self._write(thread)

    def _pause_s(self) -> float:
        # A line that is seen for the first time costs more, once.
        usual_ns = min(self._costs_ns, default=0)
        every_s, most_cost = EVERY_S, MOST_COST
        if self._looks < FIRST_SAMPLES:
            every_s, most_cost = min(EVERY_S, FIRST_EVERY_S), max(MOST_COST, FIRST_COST)
        return max(every_s, usual_ns / most_cost / NS_PER_S)

    def sample(self) -> None:
        """Look at the main thread once. No frame outlives this call."""
        if not self.times.began_ns:
            return
        seen = self._stacks.read(current_frames(), self._main)
        if seen is None:
            return
        phase, location = seen
        if phase == IDLE:
            self._idle += 1
            return
        key = (phase, "", 0, "", "") if location is None else (phase, *location[:3], location.inside)
        if key in self._samples or len(self._samples) < MOST_LINES:
            self._samples[key] += 1

    def _write(self, thread: BackgroundThread) -> None:
        thread.measure_cpu()
        with suppress(OSError):  # a full disk, or the training has ended: what was not handed over is lost
            self._mailbox.write(self._pid, self.sums(thread.cpu_ns))

    def sums(self, sampling_ns: int) -> WorkerSums:
        """Return what this worker did so far."""
        times, now_ns = self.times, self._clock()
        sampling_ns += times.prints.spent_ns
        wait = self._queue.read()
        self._queued_ns += 0 if wait is None else wait.training_ns
        if not times.began_ns:
            return WorkerSums(workers=1, sampling_ns=sampling_ns)
        if (now := resident_bytes()) is not None:
            before = self._memory or WorkerMemory(now, now, now)
            self._memory = WorkerMemory(before.first, now, max(before.peak, now), self._copied.look())
        return WorkerSums(
            workers=1,
            batches=times.batches,
            wall_ns=now_ns - times.began_ns,
            fetch_ns=times.so_far_ns(now_ns),
            slowest_ns=times.slowest_ns,
            cpu_ns=max(0, _cpu_ns() - times.began_cpu_ns - sampling_ns),
            queued_ns=self._queued_ns,
            sampling_ns=sampling_ns,
            idle_samples=self._idle,
            lines=largest_lines(self._samples),
            memory=() if self._memory is None else (self._memory,),
            prints=times.prints.record(),
            threads=self._queue.computing(),
        )


def observe_worker(loop: CodeType, new_stop: Callable[[], StopLock] | None = None) -> Callable[[], None]:
    """Observe the worker that calls this; return the function that ends that.

    Does nothing if the training that it serves has no mailbox, or no thread can be started.
    """
    parent = multiprocessing.parent_process()
    with suppress(OSError, RuntimeError):  # no folder for temporary files, or too many threads
        mailbox = Mailbox(os.getppid() if parent is None or parent.pid is None else parent.pid)
        if mailbox.is_safe():
            observer = WorkerObserver(loop, mailbox, new_stop=new_stop)
            observer.start()
            return observer.stop
    return lambda: None


def _cpu_ns() -> int:
    """Return the CPU time of this process, and of its children that have ended."""
    return time.process_time_ns() + int(sum(os.times()[2:4]) * NS_PER_S)


class CopiedMemory:
    """What a worker has copied of the memory that it has in common with the training, by writing there.

    Then its private memory grows and its resident memory does not, and each page has been a page fault. Pages that
    others let go of are private, too, without a fault.
    """

    def __init__(self, rollup: Path = Path("/proc/self/smaps_rollup")) -> None:
        self._rollup, self._next_ns, self._bytes = rollup, 0, 0
        self._first: tuple[int, int, int] | None = None

    def look(self) -> int:
        """Return the bytes; look again where that is less than a hundredth of the time since."""
        if time.perf_counter_ns() >= self._next_ns:
            begin_ns = time.thread_time_ns()  # waiting for a CPU is left out
            with suppress(OSError, ValueError, LookupError):
                self._look()
            self._next_ns = time.perf_counter_ns() + 100 * (time.thread_time_ns() - begin_ns)
        return self._bytes

    def _look(self) -> None:
        rows = (line.split() for line in self._rollup.read_text(encoding="ascii").splitlines()[1:])
        kib = {row[0]: int(row[1]) for row in rows}
        import resource  # Linux has it, as it has the file

        faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt * os.sysconf("SC_PAGE_SIZE")
        now = kib["Private_Dirty:"] * 1024, kib["Rss:"] * 1024, faults
        self._first = self._first or now
        private, resident, faulted = (last - first for first, last in zip(self._first, now, strict=True))
        self._bytes = max(self._bytes, min(private - max(0, resident), faulted))


def resident_bytes(statm: Path = Path("/proc/self/statm")) -> int | None:
    """Return the resident memory of this process; None without Linux."""
    with suppress(OSError, ValueError, IndexError):
        return int(statm.read_text(encoding="ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return None
