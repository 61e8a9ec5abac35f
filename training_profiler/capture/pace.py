"""How long the training's steps take, outside of windows."""

from collections import deque
from statistics import median
from typing import Final

KEPT: Final = 50  # steps
KNOWN: Final = 10  # steps, before one of them can be an outlier
OUTLIER: Final = 3.0  # medians


class Pace:
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
