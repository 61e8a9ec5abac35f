"""Whether a window is to open with the next step, and how long it shall be."""

from collections import deque
from collections.abc import Callable
from statistics import median
from typing import Final

from training_profiler.torch_capture.plan import CapturePlan
from training_profiler.units import NS_PER_S

KEPT: Final = 50  # steps
KNOWN: Final = 10  # steps, before one of them can be an outlier
OUTLIER: Final = 3.0  # medians


class RecentStepTimes:
    """The last steps' durations; those of windows, and of the step after one, are told to nobody."""

    def __init__(self) -> None:
        self.is_outlier = False  # whether the last step was one
        self._ns: deque[int] = deque(maxlen=KEPT)
        self._before_ns: int | None = None
        self._seen = 0
        self._limit_ns = 0.0

    def step_ended(self, at_ns: int) -> None:
        """Note that a step ended."""
        self.is_outlier = False
        if self._before_ns is not None:
            duration_ns = at_ns - self._before_ns
            self.is_outlier = len(self._ns) >= KNOWN and duration_ns > self._limit_ns
            self._ns.append(duration_ns)
            self._seen += 1
            if self._seen % KNOWN == 0:  # not at each step: sorting 50 numbers takes 4 us
                self._limit_ns = OUTLIER * median(self._ns)
        self._before_ns = at_ns

    def interrupt(self) -> None:
        """Leave the step under way out."""
        self.is_outlier = False
        self._before_ns = None

    @property
    def steps(self) -> int:
        """How many steps are known."""
        return len(self._ns)

    @property
    def median_ns(self) -> float | None:
        """Median of the steps known; None of none."""
        return median(self._ns) if self._ns else None


OTHERS: Final = "a profiler of the program's own began"
LEFT: Final = "the run ended in it"
ELSEWHERE: Final = "when steps came to end on another thread"
DROPS: Final = (OTHERS, LEFT)  # what is recorded then is not kept
CALLED_OFF: Final = "the run ended before it was written"


class CaptureMessages:
    """Says each sentence once."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._said: set[str] = set()

    def once(self, sentence: str) -> None:
        """Say it, unless it was said before."""
        if sentence not in self._said:
            self._said.add(sentence)
            self._say(sentence)

    def gave_way(self) -> None:
        """Say that a window was dropped for a profiler of the program's own."""
        self.once(f"{OTHERS} while a capture window was open: the window was dropped, and is tried again later")

    def none_now(self, why_not: str) -> None:
        """Say that a window that is due cannot open."""
        self.once(f"no capture window now, tried again later: {why_not}")

    def used_up(self, windows: int, is_asked_for: bool) -> None:
        """Say that the run has had all its windows."""
        if is_asked_for:
            had = "1 window of the run is" if windows == 1 else f"{windows} windows of the run are"
            self._say(f"a capture was asked for, but the {had} used up (windows=)")
        else:
            self.once(f"no further capture windows: {windows} {'was' if windows == 1 else 'were'} opened (windows=)")


STEPS_BEFORE: Final = 5  # known, before a window on request opens: what its steps are held against
FIRST_RETRY_NS: Final = NS_PER_S
LAST_RETRY_NS: Final = 64 * NS_PER_S  # looking for a profiler of the program's takes some 50 ms


class Schedule:
    """Windows by plan, by pace, and on request; one that could not open stays wanted."""

    def __init__(self, plan: CapturePlan, pace: RecentStepTimes) -> None:
        self.plan = plan
        self._pace = pace
        self._wanted: int | None = None  # steps of a window that is to open as soon as one can
        self._reached: set[tuple[int, int]] = set()  # of the plan's steps
        self._is_asked_for = False  # by somebody who waits for it, but not for certain steps
        self._retry_at_ns, self._retry_ns = 0, FIRST_RETRY_NS

    def reconfigure(self, plan: CapturePlan) -> None:
        """Go on with another plan."""
        self.plan = plan

    @property
    def is_idle(self) -> bool:
        """Whether nothing can come to be wanted but by request."""
        return self.plan.is_empty and self._wanted is None

    def ask(self, steps: int | None) -> None:
        """Want a window as soon as the training's pace is known."""
        self._wanted, self._is_asked_for = steps or self.plan.length, True
        self._retry_at_ns, self._retry_ns = 0, FIRST_RETRY_NS

    def due(self, step: int, now_ns: int) -> int | None:
        """Return how many steps a window that begins with ``step`` shall have; None where none shall begin."""
        plan = self.plan
        for first, last in plan.steps:
            if step == first:
                self._reached.add((first, last))
                self._wanted, self._is_asked_for = last - first + 1, False
        if self._pace.steps >= KNOWN and (
            (plan.every is not None and step % plan.every == 0) or (plan.outlier and self._pace.is_outlier)
        ):
            self._wanted, self._is_asked_for = plan.length, False
        if self._is_asked_for and self._pace.steps < STEPS_BEFORE:
            return None
        return self._wanted if now_ns >= self._retry_at_ns else None

    def later(self, now_ns: int, steps: int | None = None) -> None:
        """Want the window, of ``steps`` where it had begun, after a while that grows from time to time."""
        if steps is not None:
            self._wanted = steps
        self._retry_at_ns = now_ns + self._retry_ns
        self._retry_ns = min(LAST_RETRY_NS, 2 * self._retry_ns)

    def done(self) -> None:
        """Want no window any more: it has opened, or none will."""
        self._wanted = None

    def went_well(self) -> None:
        """Try again soon the next time that a window cannot open."""
        self._retry_ns = FIRST_RETRY_NS

    def missed(self, steps: int, opened: int) -> list[str]:
        """Return sentences on windows that never opened in a run of ``steps`` steps, of which ``opened`` did."""
        if not steps:
            return []
        ended = f"the run ended after {steps} step{'s' * (steps != 1)}"
        said = [
            f"no capture of step{f' {first}' if first == last else f's {first}-{last}'}: "
            f"{ended if first > steps else 'another window was open when it was due'}"
            for first, last in self.plan.steps
            if (first, last) not in self._reached
        ]
        if self._wanted is not None:
            said.append("a capture window that was due never opened: the run ended before it could")
        if said or opened or self.plan.is_empty:
            return said
        return [f"no capture window was opened: {ended}, {' and '.join(self._no_occasions(steps))}"]

    def _no_occasions(self, steps: int) -> list[str]:
        every, reasons = self.plan.every, []
        if every is not None:
            waits = f"none opens before {KNOWN} steps are known"
            reasons.append(f"every={every} begins with step {every}" if steps < every else waits)
        if self.plan.outlier:
            reasons.append(f"no step was longer than {OUTLIER:g} medians of {KNOWN} steps or more")
        return reasons
