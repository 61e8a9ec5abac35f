"""The threads on which everything happens that may wait: files, the terminal, other programs."""

import threading
import time
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Final

from training_profiler.safety.background_thread import BackgroundThread
from training_profiler.safety.fault_guard import Guard

MOST_JOBS: Final = 2_000
MOST_BYTES: Final = 8_000_000
LONGEST_WAIT_S: Final = 10.0  # at the end, for a thread that makes progress
IDLE_S: Final = 1.0  # between two ticks that failed
FIRST_LOOK_S, LAST_LOOK_S = 0.0005, 0.02  # between two looks at the progress


class OutputThread:
    """Does jobs one after the other on a thread of its own, so that the training never waits for a disk or a reader.

    Jobs that do not fit into the queue are refused, and their owner counts them. Any thread may hand over jobs.

    Args:
        name: of the thread.
        guard: runs the thread and each job; jobs guard themselves where they have a part of their own.
        part: what is disabled if that fails.
        tick: regular work; called on the thread between jobs, returns in how many seconds it is due again.
    """

    def __init__(
        self,
        name: str,
        guard: Guard,
        part: str,
        tick: Callable[[], float] | None = None,
        most_jobs: int = MOST_JOBS,
        most_bytes: int = MOST_BYTES,
    ) -> None:
        self._name, self._guard, self._part = name, guard, part
        self._tick = tick
        self._most_jobs, self._most_bytes = most_jobs, most_bytes
        self._jobs: SimpleQueue[tuple[Callable[[], None] | None, int]] = SimpleQueue()  # put() may interrupt itself
        # Held for a few instructions and never over a job. Reentrant, because a signal handler may hand over a job.
        self._counting = threading.RLock()
        self._given = self._done = 0  # jobs
        self._bytes = 0  # of the jobs that wait
        self._moves = 0  # grows with each step of progress
        self._stuck_at: int | None = None  # ``_moves`` when a wait was given up
        self._thread: BackgroundThread | None = None
        self._is_starting = False  # a signal handler that hands over a job meanwhile does it itself
        self._is_over = False

    def start(self) -> None:
        """Start the thread if it does not run; where none can be started, jobs are done by whoever hands them over."""
        if self._thread is not None or self._is_over:
            return
        with self._counting:
            if self._thread is not None or self._is_starting:
                return
            self._is_starting = True
            try:
                thread = BackgroundThread(self._name, self._run, self._guard, self._part)
                thread.start()
                self._thread = thread
            except RuntimeError:  # there are too many, or the interpreter is about to end
                pass
            finally:
                self._is_starting = False

    def put(self, job: Callable[[], None], size: int = 0) -> bool:
        """Hand over a job that holds ``size`` bytes; return False, without doing it, if there is no room. Never waits.

        After ``stop``, jobs are refused.
        """
        if self._is_over:
            return False
        self.start()
        if self._thread is None:
            job()
            return True
        with self._counting:
            waiting = self._given - self._done
            if waiting >= self._most_jobs or (waiting and self._bytes + size > self._most_bytes):
                return False
            self._given += 1
            self._bytes += size
        self._jobs.put((job, size))
        return True

    def moved(self) -> None:
        """Note progress in the middle of a job, on the thread."""
        self._moves += 1

    @property
    def waiting(self) -> int:
        """Number of jobs that are not done."""
        return self._given - self._done

    @property
    def cpu_ns(self) -> int:
        """CPU time of the thread up to its latest job, in ns."""
        return 0 if self._thread is None else self._thread.cpu_ns

    def is_alive(self) -> bool:
        """Return whether the thread runs."""
        return self._thread is not None and self._thread.is_alive()

    def is_current(self) -> bool:
        """Return whether the caller runs on this thread."""
        return self._thread is not None and self._thread.is_current()

    def wait(self, patience_s: float) -> bool:
        """Wait until all jobs handed over so far are done; return whether they are.

        Gives up after ``patience_s`` without progress, and at once if an earlier wait was given up and nothing has
        moved since.
        """
        if self._thread is None or self._thread.is_current():
            return self._thread is None
        target, begin_s = self._given, time.monotonic()
        moves, moved_s, pause_s = self._moves, begin_s, FIRST_LOOK_S
        while self._done < target:
            now_s = time.monotonic()
            if self._moves != moves:
                moves, moved_s = self._moves, now_s
            is_stuck = self._stuck_at == moves or not self._thread.is_alive()
            if is_stuck or now_s - moved_s >= patience_s or now_s - begin_s >= LONGEST_WAIT_S:
                self._stuck_at = moves
                return False
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, LAST_LOOK_S)
        return True

    def stop(self) -> None:
        """Let the thread end once its jobs are done; does not wait."""
        if not self._is_over:
            self._is_over = True
            self._jobs.put((None, 0))

    def join(self, timeout_s: float) -> bool:
        """Wait at most ``timeout_s`` for the thread to end after ``stop``; return whether it has."""
        return self._thread is None or self._thread.join(timeout_s)

    def after_fork_in_child(self) -> None:
        """Drop thread and jobs: they are the parent's."""
        self._thread, self._is_over = None, True

    def _run(self, thread: BackgroundThread) -> None:
        while True:
            try:
                timeout_s = self._next_tick_s()
                thread.measure_cpu()
                job, size = self._jobs.get(timeout=timeout_s)
            except Empty:
                continue
            if job is None:
                return
            try:
                self._guard(self._part, job)
            finally:
                with self._counting:
                    self._done += 1
                    self._bytes -= size
                    self._moves += 1

    def _next_tick_s(self) -> float | None:
        if self._tick is None or self._is_over:
            return None
        due_s = [IDLE_S]
        tick = self._tick
        self._guard(f"{self._part} by time", lambda: due_s.append(tick()))
        return max(0.0, due_s[-1])
