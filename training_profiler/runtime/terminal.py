"""Terminal output of a run, and the threads on which everything happens that may wait. Only rank 0 prints."""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from io import TextIOWrapper
from queue import Empty, SimpleQueue
from typing import IO, Final

from training_profiler.base.text import PREFIX
from training_profiler.ranks.identity import Rank
from training_profiler.recording.recorder import TrainingProgress
from training_profiler.reports.sections import status_text
from training_profiler.runtime.health import ProfilerHealth
from training_profiler.safety.fault_guard import BackgroundThread, FaultGuard, Guard
from training_profiler.sinks.console import Console, StatusLine

MOST_JOBS: Final = 2_000
MOST_JOB_BYTES: Final = 8_000_000
LONGEST_WAIT_S: Final = 10.0  # at the end, for a thread that makes progress
IDLE_S: Final = 1.0  # between two ticks that failed
FIRST_LOOK_S, LAST_LOOK_S = 0.0005, 0.02  # between two looks at the progress


@dataclass(eq=False)
class OutputThread:
    """Does jobs one after the other on a thread of its own, so that the training never waits for a disk or a reader.

    Jobs that do not fit into the queue are refused, and their owner counts them. Any thread may hand over jobs. If one
    fails that does not guard itself, ``guard`` disables ``part``.
    """

    name: str
    guard: Guard
    part: str
    tick: Callable[[], float] | None = None  # regular work between jobs; returns in how many seconds it is due again
    most_jobs: int = MOST_JOBS
    most_bytes: int = MOST_JOB_BYTES

    def __post_init__(self) -> None:
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
                thread = BackgroundThread(self.name, self._run, self.guard, self.part)
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
            if waiting >= self.most_jobs or (waiting and self._bytes + size > self.most_bytes):
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
                self.guard(self.part, job)
            finally:
                with self._counting:
                    self._done += 1
                    self._bytes -= size
                    self._moves += 1

    def _next_tick_s(self) -> float | None:
        if self.tick is None or self._is_over:
            return None
        due_s, tick = [IDLE_S], self.tick
        self.guard(f"{self.part} by time", lambda: due_s.append(tick()))
        return max(0.0, due_s[-1])


MOST_TEXTS: Final = 200  # that wait for a reader
MOST_BYTES: Final = 1_000_000
STATUS_S: Final = 1.0  # between two drawings of the status line
LINE_S: Final = 15.0  # without a text of ours, until the status is a line of a file or pipe
LINE_SHARE: Final = 0.1  # of the run so far that follows without a line: a night's log has about a hundred
NEVER_S: Final = 3600.0
FORK_S: Final = 0.2  # a fork waits at most this long for a text that is being written
DISK_S: Final = 0.2  # so does a step for a text that goes to a file, once while the disk does not respond


class Terminal:
    """Prints on rank 0, on a thread of its own where the reader is not ready. A status line shows the ``progress``."""

    def __init__(
        self, rank: Rank, guard: FaultGuard, health: ProfilerHealth, stream: str, progress: TrainingProgress
    ) -> None:
        self._rank, self._guard, self._health = rank, guard, health
        self.console = Console(stream)
        self.status, self._progress, self._detail = StatusLine(), progress, ""
        self._begun_s: float | None = None  # when the status was asked for
        self._drawn = 0, time.monotonic()  # steps, and when, of the last status or other text
        self.thread = OutputThread(
            "console", guard.run, "console", self._draw_status, most_jobs=MOST_TEXTS, most_bytes=MOST_BYTES
        )
        self._refused = self._unread = 0  # texts: counted by those who hand them over, and by the thread
        self._gives_up = False
        self._held: Console | None = None

    def reconfigure(self, stream: str) -> None:
        """Print to another stream from now on."""
        self.console = Console(stream)
        self.stop_status()

    def start_status(self) -> None:
        """Begin the status line; a file or pipe gets it as a line where reports leave long gaps, a notebook never."""
        stream = self.console.stream()
        if self._rank.is_primary() and (self.status.start(stream) or type(stream) is TextIOWrapper):
            self._drawn = self._progress.steps, time.monotonic()
            self._begun_s = self._drawn[1]
            self.thread.put(lambda: None)  # it sleeps for long if it has looked before

    def stop_status(self) -> None:
        """End the status line."""
        self._begun_s = None
        self.status.stop()

    def set_status(self, detail: str) -> None:
        """Let the status line end with ``detail`` from now on."""
        self._detail = detail

    def _draw_status(self) -> float:
        """Draw the status line on the thread; return in how many seconds to do so again."""
        is_drawn, begun_s = self.status.is_active, self._begun_s
        if begun_s is None:
            return NEVER_S
        now_s, (steps, then_s) = time.monotonic(), self._drawn
        pause_s = STATUS_S if is_drawn else max(LINE_S, LINE_SHARE * (now_s - begun_s))
        if now_s < then_s + pause_s:
            return then_s + pause_s - now_s
        self._drawn = self._progress.steps, now_s
        rate = (self._drawn[0] - steps) / (now_s - then_s)
        text = status_text(self._drawn[0], rate, self._detail, self.console.layout("table").width)
        if is_drawn:
            self.status.show(text)
        elif rate:
            self._print_here(f"{text}\n", self.console.stream())
        return pause_s

    def print(self, text: str) -> None:
        """Print ``text`` as it is, now or soon; texts for which there is no room are left out and counted."""
        if self._rank.is_primary():
            if not self.status.is_active:
                self._drawn = self._progress.steps, time.monotonic()
            self._hand_over(text)

    def _hand_over(self, text: str) -> None:
        rest = [text]
        is_on_disk = self.console.is_on_disk()
        if not is_on_disk and not self.thread.waiting:
            self._guard.run("console", lambda: rest.insert(0, self.console.print_now(text)))
        if rest[0]:
            self._leave_to_thread(rest[0])
        if is_on_disk:
            self.thread.wait(DISK_S)  # otherwise the program's next line could come first

    def _leave_to_thread(self, text: str) -> None:
        """Let the thread print a text that its reader is not ready for."""
        stream = self.console.stream()
        job = partial(self._guard.run, "console", lambda: self._print_here(text, stream))
        self._refused += not self.thread.put(job, len(text))

    def _print_here(self, text: str, stream: IO[str] | None) -> None:
        gives_up = (lambda: self._gives_up) if self.thread.is_current() else None
        self.status.clear()
        self._unread += not self.console.print(text, stream, gives_up)

    def report(self, sentence: str) -> None:
        """Print one line between reports, and keep it for the final report, on every rank."""
        self._health.notes.append(sentence)
        self.print(f"{PREFIX}{sentence}\n")

    def close(self) -> None:
        """Print no more; what its reader has not read by now is left out."""
        self._gives_up = True
        self.stop_status()
        self.thread.stop()
        if not self.thread.join(FORK_S):
            self.console.finish_flush()

    def before_fork(self) -> None:
        """Let no stream be locked in the child by a thread that the child does not have."""
        self._held = self.console if self.console.hold(FORK_S) else None

    def after_fork(self) -> None:
        """Undo ``before_fork``, in both processes."""
        held, self._held = self._held, None
        if held is not None:
            held.release()

    def after_fork_in_child(self) -> None:
        """Print nothing: the terminal is the parent's."""
        self.after_fork()
        self.status.after_fork_in_child()
        self.thread.after_fork_in_child()

    def notes(self) -> list[str]:
        """Return a sentence on texts for which the reader left no room."""
        texts = self._refused + self._unread
        return [f"{texts} text{'s' * (texts != 1)} not printed: their reader did not keep up"] if texts else []
