"""When windows of deep capture open, and what they may cost."""

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from training_profiler.base.errors import SettingsError
from training_profiler.base.units import NS_PER_S

EXAMPLE: Final = "example: steps=100-103 or every=1000,outlier,length=4,windows=3"
FIRST_STEP: Final = 2  # a training is only known when its first step has ended
KEPT: Final = 50  # steps
KNOWN: Final = 10  # steps before the first possible outlier
OUTLIER: Final = 3.0  # medians
STEPS_BEFORE: Final = 5  # recorded steps before a requested window opens, for comparison
FIRST_RETRY_NS: Final = NS_PER_S
LAST_RETRY_NS: Final = 64 * NS_PER_S  # the search for the program's profilers takes about 50 ms


@dataclass(frozen=True, slots=True)
class CapturePlan:
    """When windows open without a request, and the limits of each window."""

    steps: tuple[tuple[int, int], ...] = ()
    """First and last step of each window, counted from 1."""
    every: int | None = None
    """A window begins with each step that is a multiple of this."""
    outlier: bool = False
    """Whether a window opens right after a step that took far longer than others."""
    length: int = 4
    """Steps of a window that no range gives."""
    windows: int = 3
    """Most windows of a run."""
    seconds: float = 30.0
    """Longest time of a window, in s."""
    megabytes: float = 500.0
    """Largest file of a window, in 1e6 bytes."""
    memory_gib: float = 4.0
    """Most that the process may grow by in a window, in GiB."""

    @property
    def is_empty(self) -> bool:
        """Whether only requests open windows."""
        return not self.steps and self.every is None and not self.outlier


def read_plan(given: object) -> CapturePlan:
    """Return the plan that a text such as ``steps=100-103,windows=1`` stands for.

    Raises:
        SettingsError: the text is invalid. The message continues after the name and value of the setting.
    """
    if isinstance(given, CapturePlan):
        return given
    values: dict[str, Any] = {}
    for part in (part.strip() for part in str(given).split(",") if part.strip()):
        key, _, value = (word.strip() for word in part.partition("="))
        if key == "outlier":
            if value:
                raise SettingsError(f"has {part!r}, but outlier takes no value; {EXAMPLE}")
            values[key] = True
        elif key not in _READ:
            known = ", ".join(["outlier", *_READ])
            raise SettingsError(f"has {part!r}, which is none of {known}; {EXAMPLE}")
        else:
            read = _READ[key](part, value)
            values[key] = (*values.get(key, ()), read) if key == "steps" else read
    if not values:
        raise SettingsError(f"says nothing about when to record; {EXAMPLE}")
    return CapturePlan(**values)


def _range(part: str, value: str) -> tuple[int, int]:
    first, _, last = value.partition("-")
    try:
        steps = int(first), int(last or first)
    except ValueError:
        steps = (0, 0)
    if not FIRST_STEP <= steps[0] <= steps[1]:
        raise SettingsError(
            f"has {part!r}, which is not a first and last step from {FIRST_STEP} on (steps are counted from 1, and the "
            f"first is over before anything can begin); {EXAMPLE}"
        )
    return steps


def _count(part: str, value: str) -> int:
    if not value.isdecimal() or int(value) < 1:
        raise SettingsError(f"has {part!r}, which is not a positive integer; {EXAMPLE}")
    return int(value)


def _amount(part: str, value: str) -> float:
    try:
        amount = float(value)
    except ValueError:
        amount = -1.0
    if not 0 < amount < float("inf"):
        raise SettingsError(f"has {part!r}, which is not a positive number; {EXAMPLE}")
    return amount


_READ: Final[Mapping[str, Callable[[str, str], Any]]] = {
    "steps": _range,
    "every": _count,
    "length": _count,
    "windows": _count,
    "seconds": _amount,
    "megabytes": _amount,
    "memory_gib": _amount,
}


class Schedule:
    """Windows by plan, by step duration and on request. A window that cannot open is tried again.

    Durations are those of the last steps, without steps in a window and the step after it.
    """

    def __init__(self, plan: CapturePlan) -> None:
        self.plan = plan
        self.is_outlier = False  # whether the last step was one
        self._ns: deque[int] = deque(maxlen=KEPT)
        self._before_ns: int | None = None
        self._recorded = 0
        self._limit_ns = 0.0
        self._wanted: int | None = None  # length of the window that waits to open
        self._reached: set[tuple[int, int]] = set()  # of the plan's steps
        self._is_asked_for = False  # the window was requested
        self._retry_at_ns, self._retry_ns = 0, FIRST_RETRY_NS

    def reconfigure(self, plan: CapturePlan) -> None:
        """Apply a new plan."""
        self.plan = plan

    def step_ended(self, at_ns: int) -> None:
        """Record the end of a step."""
        self.is_outlier = False
        if self._before_ns is not None:
            duration_ns = at_ns - self._before_ns
            self.is_outlier = len(self._ns) >= KNOWN and duration_ns > self._limit_ns
            self._ns.append(duration_ns)
            self._recorded += 1
            if self._recorded % KNOWN == 0:  # not at each step: sorting 50 numbers takes 4 us
                self._limit_ns = OUTLIER * (self.median_ns or 0)
        self._before_ns = at_ns

    def interrupt(self) -> None:
        """Leave the current step out."""
        self.is_outlier = False
        self._before_ns = None

    @property
    def median_ns(self) -> float | None:
        """Median duration of the recorded steps; None without steps."""
        from statistics import median  # here, because each profiled process imports this file at its start

        return median(self._ns) if self._ns else None

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
        if len(self._ns) >= KNOWN and (
            (plan.every is not None and step % plan.every == 0) or (plan.outlier and self.is_outlier)
        ):
            self._wanted, self._is_asked_for = plan.length, False
        if self._is_asked_for and len(self._ns) < STEPS_BEFORE:
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
        every, reasons = self.plan.every, []
        if every is not None:
            waits = f"none opens before {KNOWN} steps are known"
            reasons.append(f"every={every} begins with step {every}" if steps < every else waits)
        if self.plan.outlier:
            reasons.append(f"no step was longer than {OUTLIER:g} medians of {KNOWN} steps or more")
        return [f"no capture window was opened: {ended}, {' and '.join(reasons)}"]
