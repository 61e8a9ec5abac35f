"""Decides whether a window opens with the next step, and its length."""

from collections import deque
from collections.abc import Callable
from statistics import median
from typing import Final

from training_profiler.base.units import NS_PER_S
from training_profiler.torch_capture.plan import CapturePlan

KEPT: Final = 50  # steps
KNOWN: Final = 10  # steps before the first possible outlier
OUTLIER: Final = 3.0  # medians


class RecentStepTimes:
    """Durations of the last steps, without steps in a window and the step after it."""

    def __init__(self) -> None:
        self.is_outlier = False  # whether the last step was one
        self._ns: deque[int] = deque(maxlen=KEPT)
        self._before_ns: int | None = None
        self._recorded = 0
        self._limit_ns = 0.0

    def step_ended(self, at_ns: int) -> None:
        """Record the end of a step."""
        self.is_outlier = False
        if self._before_ns is not None:
            duration_ns = at_ns - self._before_ns
            self.is_outlier = len(self._ns) >= KNOWN and duration_ns > self._limit_ns
            self._ns.append(duration_ns)
            self._recorded += 1
            if self._recorded % KNOWN == 0:  # not at each step: sorting 50 numbers takes 4 us
                self._limit_ns = OUTLIER * median(self._ns)
        self._before_ns = at_ns

    def interrupt(self) -> None:
        """Leave the current step out."""
        self.is_outlier = False
        self._before_ns = None

    @property
    def steps(self) -> int:
        """Number of recorded steps."""
        return len(self._ns)

    @property
    def median_ns(self) -> float | None:
        """Median duration of the recorded steps; None without steps."""
        return median(self._ns) if self._ns else None


OTHERS: Final = "a profiler of the program's own began"
LEFT: Final = "the run ended in it"
ELSEWHERE: Final = "when steps came to end on another thread"
DROPS: Final = (OTHERS, LEFT)  # reasons to discard a window
CALLED_OFF: Final = "the run ended before it was written"


class CaptureMessages:
    """Reports each message once."""

    def __init__(self, report: Callable[[str], None]) -> None:
        self._report = report
        self._reported: set[str] = set()

    def once(self, sentence: str) -> None:
        """Report ``sentence`` unless it was reported before."""
        if sentence not in self._reported:
            self._reported.add(sentence)
            self._report(sentence)

    def gave_way(self) -> None:
        """Report that a window was dropped for a profiler of the program."""
        self.once(f"{OTHERS} while a capture window was open: the window was dropped, and is tried again later")

    def none_now(self, why_not: str) -> None:
        """Report that a due window cannot open."""
        self.once(f"no capture window now, tried again later: {why_not}")

    def used_up(self, windows: int, is_asked_for: bool) -> None:
        """Report that the run has used all its windows."""
        if is_asked_for:
            had = "1 window of the run is" if windows == 1 else f"{windows} windows of the run are"
            self._report(f"a capture was asked for, but the {had} used up (windows=)")
        else:
            self.once(f"no further capture windows: {windows} {'was' if windows == 1 else 'were'} opened (windows=)")


STEPS_BEFORE: Final = 5  # recorded steps before a requested window opens, for comparison
FIRST_RETRY_NS: Final = NS_PER_S
LAST_RETRY_NS: Final = 64 * NS_PER_S  # the search for the program's profilers takes about 50 ms


class Schedule:
    """Windows by plan, by step duration and on request. A window that cannot open is tried again."""

    def __init__(self, plan: CapturePlan, step_times: RecentStepTimes) -> None:
        self.plan = plan
        self._step_times = step_times
        self._wanted: int | None = None  # length of the window that waits to open
        self._reached: set[tuple[int, int]] = set()  # of the plan's steps
        self._is_asked_for = False  # the window was requested
        self._retry_at_ns, self._retry_ns = 0, FIRST_RETRY_NS

    def reconfigure(self, plan: CapturePlan) -> None:
        """Apply a new plan."""
        self.plan = plan

    @property
    def is_idle(self) -> bool:
        """Whether only a request can open a window."""
        return self.plan.is_empty and self._wanted is None

    def ask(self, steps: int | None) -> None:
        """Request a window. It opens when enough steps are recorded."""
        self._wanted, self._is_asked_for = steps or self.plan.length, True
        self._retry_at_ns, self._retry_ns = 0, FIRST_RETRY_NS

    def due(self, step: int, now_ns: int) -> int | None:
        """Return the length of a window that begins with ``step``; None if no window is due."""
        plan = self.plan
        for first, last in plan.steps:
            if step == first:
                self._reached.add((first, last))
                self._wanted, self._is_asked_for = last - first + 1, False
        if self._step_times.steps >= KNOWN and (
            (plan.every is not None and step % plan.every == 0) or (plan.outlier and self._step_times.is_outlier)
        ):
            self._wanted, self._is_asked_for = plan.length, False
        if self._is_asked_for and self._step_times.steps < STEPS_BEFORE:
            return None
        return self._wanted if now_ns >= self._retry_at_ns else None

    def later(self, now_ns: int, steps: int | None = None) -> None:
        """Try the window again later; the delay doubles each time. ``steps`` is the length of a dropped window."""
        if steps is not None:
            self._wanted = steps
        self._retry_at_ns = now_ns + self._retry_ns
        self._retry_ns = min(LAST_RETRY_NS, 2 * self._retry_ns)

    def done(self) -> None:
        """Forget the due window."""
        self._wanted = None

    def went_well(self) -> None:
        """Reset the delay after a written window."""
        self._retry_ns = FIRST_RETRY_NS

    def missed(self, steps: int, opened: int) -> list[str]:
        """Return sentences on windows that never opened in a run of ``steps`` steps, of which ``opened`` did."""
        if not steps:
            return []
        ended = f"the run ended after {steps} step{'s' * (steps != 1)}"
        sentences = [
            f"no capture of step{f' {first}' if first == last else f's {first}-{last}'}: "
            f"{ended if first > steps else 'another window was open when it was due'}"
            for first, last in self.plan.steps
            if (first, last) not in self._reached
        ]
        if self._wanted is not None:
            sentences.append("a capture window that was due never opened: the run ended before it could")
        if sentences or opened or self.plan.is_empty:
            return sentences
        return [f"no capture window was opened: {ended}, {' and '.join(self._no_occasions(steps))}"]

    def _no_occasions(self, steps: int) -> list[str]:
        every, reasons = self.plan.every, []
        if every is not None:
            waits = f"none opens before {KNOWN} steps are known"
            reasons.append(f"every={every} begins with step {every}" if steps < every else waits)
        if self.plan.outlier:
            reasons.append(f"no step was longer than {OUTLIER:g} medians of {KNOWN} steps or more")
        return reasons
