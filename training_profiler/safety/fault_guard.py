"""How the profiler does its own work beside a training: guarded, on threads without signals, and within a budget."""

import logging
import re
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Final, Protocol

from training_profiler.base.text import PREFIX
from training_profiler.base.units import NS_PER_S
from training_profiler.recording.tracebacks import reraise_if_foreign
from training_profiler.safety.stream_room import takes_a_line

log: Final = logging.getLogger("training_profiler")
_NAME: Final = re.compile(r"%\(name\)|\{name\b|\$\{?name\b")  # in a format
_LIBRARIES_OF_GREENLETS: Final = ("gevent", "eventlet")
OWN_THREADS: Final = "training_profiler "  # the names of the profiler's threads begin so
SHARE: Final = 0.005  # of the run's time, for everything
LEAST: Final = 0.002  # for all that can wait, where everything else leaves less: figures of lines need some samples
LINES: Final = "line sampler"
REPORTS: Final = "periodic reports"
EPOCHS: Final = "summaries of epochs"
MACHINE: Final = "system monitor"
WORKERS: Final = "loader workers' collector"
PARTS: Final = {LINES: 0.6, REPORTS: 0.1, EPOCHS: 0.1, MACHINE: 0.1, WORKERS: 0.1}  # of what is left
LONGEST_PAUSE_S: Final = 10.0
# Not so for lines: a phase of a few seconds, such as a validation, would have none, nor the last half of a short run.
LONGEST_OF: Final = {LINES: 0.25}
SHORT: Final = 0.01  # of the run so far

Guard = Callable[[str, Callable[[], None]], None]  # ``FaultGuard.run``: the name of a part, and its work


class NoThreadError(RuntimeError):
    """No thread of the profiler can be started, because a greenlet would be started in its place."""


def library_of_greenlets() -> str | None:
    """Return the library whose ``monkey_patch`` makes ``threading`` start greenlets; None where it starts threads.

    A greenlet of ours would run, and wait, on the training's own thread.
    """
    for name in ("_start_joinable_thread", "_start_new_thread"):  # private: may be gone; the first since Python 3.13
        library = str(getattr(getattr(threading, name, None), "__module__", None)).partition(".")[0]
        if library in _LIBRARIES_OF_GREENLETS:
            return library
    return None


def warn(sentence: str, has_traceback: bool) -> None:
    """Log a warning while a training runs. It begins with our name, unless all handlers print that of the logger."""
    if takes_a_line(sys.stderr):  # else logging would wait, and hold a lock that the program's end needs
        with suppress(Exception):  # a user's log handler may fail as well
            log.warning("%s%s", "" if _is_named() else PREFIX, sentence, exc_info=has_traceback)


def _is_named() -> bool:
    handlers: list[logging.Handler] = []
    logger: logging.Logger | None = log
    while logger is not None:
        handlers += [each for each in logger.handlers if not isinstance(each, logging.NullHandler)]
        logger = logger.parent if logger.propagate else None
    formats = [str(getattr(handler.formatter, "_fmt", "")) for handler in handlers]
    return bool(formats) and all(_NAME.search(each) for each in formats)


class FaultGuard:
    """``disabled`` holds the reason for each part that failed."""

    def __init__(self) -> None:
        self.disabled: dict[str, str] = {}

    def run(self, part: str, work: Callable[[], None]) -> None:
        """Do ``work``, unless ``part`` failed before; if it fails now, log that once and disable the part.

        A part that starts no thread beside greenlets is disabled, and not logged.

        Raises:
            Exception: raised by a signal handler of the program while ``work`` ran.
        """
        if part in self.disabled:
            return
        try:
            work()
        except Exception as error:
            reraise_if_foreign(error)
            reason = f"{type(error).__name__}: {error}"
            self.disabled[part] = reason
            if isinstance(error, NoThreadError):  # no error, and the report says it
                return
            # An error of the operating system needs no traceback; a mistake of ours does.
            warn(f"{part} switched off, the training goes on: {reason}", not isinstance(error, OSError))


class StopLock(Protocol):
    """A closed lock on which a thread sleeps until it must end."""

    def acquire(self, blocking: bool, timeout: float, /) -> bool:
        """Sleep until ``release`` or for ``timeout`` seconds; return whether it was released."""

    def release(self) -> None:
        """Wake the thread; raise ``RuntimeError`` if it was released before."""


def closed_lock() -> StopLock:
    """Return a lock that can be waited for without running a condition's Python code."""
    lock = threading.Lock()
    lock.acquire()
    return lock


def handed_over_ns(stop: StopLock | None) -> int:
    """Return how long the main thread waited for the thread that slept on ``stop`` to take over the GIL; 0 if unknown.

    The unit is ns.
    """
    return int(getattr(stop, "waited_ns", int)())


class BackgroundThread:
    """A daemon thread that takes no signals: Ctrl-C has to wake the training's thread.

    If ``work`` raises, ``guard`` disables ``part``. It is called with this object, and returns soon after
    ``wait_for_stop`` returns True. The thread does not exist in a forked child, so its owner drops it there.
    ``stop`` is the closed lock that it sleeps on.
    """

    def __init__(
        self,
        name: str,
        work: Callable[["BackgroundThread"], None],
        guard: Guard,
        part: str,
        stop: StopLock | None = None,
    ) -> None:
        self.cpu_ns = 0  # as of the latest ``measure_cpu``
        self._work, self._guard, self._part = work, guard, part
        self._stop = stop or closed_lock()
        self._thread = threading.Thread(target=self._run, name=f"{OWN_THREADS}{name}", daemon=True)

    def start(self) -> None:
        """Start the thread.

        Raises:
            NoThreadError: a library has replaced threads.
            RuntimeError: no thread can be started: there are too many, or the interpreter is about to end.
        """
        if (library := library_of_greenlets()) is not None:
            raise NoThreadError(f"{library} has replaced threads by greenlets")
        self._thread.start()

    def stop(self) -> None:
        """Have ``wait_for_stop`` return True once."""
        with suppress(RuntimeError):  # it was asked to before
            self._stop.release()

    def wait_for_stop(self, timeout_s: float) -> bool:
        """Wait at most ``timeout_s`` for ``stop``, on the thread itself; return whether it was called."""
        self.measure_cpu()
        return self._stop.acquire(True, timeout_s)

    def measure_cpu(self) -> None:
        """Update ``cpu_ns``, on the thread itself."""
        self.cpu_ns = time.thread_time_ns()

    def join(self, timeout_s: float) -> bool:
        """Wait at most ``timeout_s`` for the thread to end; return whether it has. On the thread itself, never wait."""
        if self.is_current():
            return False
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def is_alive(self) -> bool:
        """Return whether the thread has started and not ended."""
        return self._thread.is_alive()

    def is_current(self) -> bool:
        """Return whether the caller runs on this thread."""
        return threading.current_thread() is self._thread

    def _run(self) -> None:
        if hasattr(signal, "pthread_sigmask"):
            signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        try:
            self._guard(self._part, lambda: self._work(self))
        finally:
            self.measure_cpu()
            active = getattr(threading, "_active", None)  # private: may be gone
            if library_of_greenlets() is not None and isinstance(active, dict):  # since the thread began
                # Python looks for it by the number that the library gave it, or prints a ``KeyError`` of the thread.
                active.pop(self._thread.ident, None)
                active[threading.get_ident()] = self._thread


class CostBudget:
    """The costs of one run so far, and what may still be spent. Costs are CPU time in ns: it is when others wait.

    What a training calls cannot wait: its patches, drains, and the threads that write what was handed to them. It is
    only counted. Samples and reports can wait, so they share what is left. Each has its part of that, over the whole
    run: a part that has used more makes longer pauses until it is even. ``counted`` returns the cost so far of each
    part that cannot wait.
    """

    def __init__(
        self, clock: Callable[[], int], begin_ns: int, counted: Mapping[str, Callable[[], float]] | None = None
    ) -> None:
        self._clock, self._begin_ns = clock, begin_ns
        self._counted = counted or {}
        self._paces = {part: Pace(self, part) for part in PARTS}

    def pace(self, part: str) -> "Pace":
        """Return the pace of one of ``PARTS``."""
        return self._paces[part]

    @property
    def run_ns(self) -> int:
        """The run's time so far."""
        return max(0, self._clock() - self._begin_ns)

    def left_ns(self) -> float:
        """Return what all parts that can wait may have spent by now."""
        run_ns = self.run_ns
        others_ns = sum(spent_ns() for spent_ns in self._counted.values())
        others_ns += sum(max(0.0, pace.spent_ns - PARTS[part] * SHARE * run_ns) for part, pace in self._paces.items())
        return max(LEAST * run_ns, SHARE * run_ns - others_ns)

    def notes(self) -> list[str]:
        """Return what all parts cost together, and what gave way for that."""
        run_ns = self.run_ns
        spent = {part: spent_ns() for part, spent_ns in self._counted.items()}
        spent |= {part: float(pace.spent_ns) for part, pace in self._paces.items()}
        total_ns = sum(spent.values())
        if not run_ns or not total_ns:
            return []
        costs = [f"{part} {ns / run_ns:.2%}" for part, ns in sorted(spent.items(), key=lambda row: -row[1])]
        text = ", ".join(cost for cost in costs if not cost.endswith(" 0.00%"))
        notes = [f"CPU time of the profiler, on all its threads: {total_ns / run_ns:.2%} of the run's time ({text})"]
        return notes + [note for pace in self._paces.values() if (note := pace.note()) is not None]


class Pace:
    """When one part may work again. Used on one thread."""

    def __init__(self, budget: CostBudget, part: str) -> None:
        self.spent_ns = self.refused = 0
        self._budget, self._part = budget, part
        self._allowed = self._latest_ns = 0
        self._pauses = 0
        self._wanted_s = self._paused_s = 0.0

    def spend(self, ns: int) -> None:
        """Add what the part has just cost."""
        self.spent_ns += ns
        self._latest_ns = ns

    def allows(self, free: int = 0) -> bool:
        """Return whether the part may do its work once more, and count it; the first ``free`` times it always may."""
        if self._allowed < free or self.spent_ns + self._latest_ns <= self._may_ns():
            self._allowed += 1
            return True
        self.refuse(1)
        return False

    def refuse(self, times: int) -> None:
        """Count so many times at which the part was not asked, because ``refuses_for_ns`` said that it may not work."""
        self.refused += times

    def refuses_for_ns(self) -> int:
        """Return for how long ``allows`` surely refuses from now on; it may for longer."""
        over_ns = self.spent_ns + self._latest_ns - self._may_ns()
        # What is left grows by the share of the run, and by that of each part that has used more and pauses.
        return max(0, int(over_ns / (PARTS[self._part] * SHARE * (1 + sum(PARTS.values())))))

    def pause_s(self, wanted_s: float, spent_ns: int, free: int = 0) -> float:
        """Return how long to wait until the next time, after a cost of ``spent_ns`` so far.

        ``wanted_s`` is the pause without a budget; the ``free`` first ones are as long as that.
        """
        latest_ns, self.spent_ns = spent_ns - self.spent_ns, spent_ns
        usual_ns, self._latest_ns = min(latest_ns, self._latest_ns or latest_ns), latest_ns  # one may have had to wait
        pause_s = wanted_s
        if self._pauses >= free:  # adding up all costs takes time, too
            may_ns = self._may_ns()
            over_ns = self.spent_ns - may_ns
            if over_ns > 0:
                share = may_ns / max(1, self._budget.run_ns) or PARTS[self._part] * LEAST
                # Half of its part at most, so that the part is even at some time.
                longest_s = LONGEST_PAUSE_S
                if self._part in LONGEST_OF:
                    longest_s = min(LONGEST_OF[self._part], SHORT * self._budget.run_ns / NS_PER_S)
                longest_s = max(longest_s, 2 * usual_ns / share / NS_PER_S)
                pause_s = max(wanted_s, min(LONGEST_PAUSE_S, longest_s, over_ns / share / NS_PER_S))
        self._pauses += 1
        self._wanted_s += wanted_s
        self._paused_s += pause_s
        return pause_s

    def note(self) -> str | None:
        """Return that the part worked more seldom than wanted; None if it did not."""
        if self._paused_s <= 1.1 * self._wanted_s:
            return None
        made, wanted = (
            f"{rate:.2g}" if rate < 99.5 else f"{rate:.0f}"
            for rate in (self._pauses / self._paused_s, self._pauses / self._wanted_s)
        )
        return (
            f"{self._part}: {made} times a second and not {wanted}, because the profiler's budget is {SHARE:.1%} of "
            f"the run"
        )

    def _may_ns(self) -> float:
        return PARTS[self._part] * self._budget.left_ns()


def unlimited(part: str = LINES) -> Pace:
    """Return a pace that allows everything, as in a run without end."""
    return CostBudget(lambda: 1 << 62, 0).pace(part)
