"""The steps right before the first capture of a run, and those after it."""

from collections import deque
from collections.abc import Sequence
from itertools import islice
from math import sqrt
from typing import Final

import numpy as np

from training_profiler.aggregation.arrays import Floats, Integers
from training_profiler.base.units import NS_PER_S
from training_profiler.snapshot.snapshot import AroundCapture

STEPS: Final = 50  # on each side
STEPS_NEEDED: Final = 20  # before
# Of a median, with errors of a normal distribution; twice as much, because neighbouring steps depend on each other.
_ERROR_OF_MEDIAN: Final = 2 * 1.2533 * 1.4826


class AroundFirstCapture:
    """Keeps the steps around the first capture window. Those that it slowed are in neither side."""

    def __init__(self) -> None:
        self._before: deque[int] = deque(maxlen=STEPS)
        self._after: list[int] = []
        self._has_begun = False

    def add(self, durations_ns: Integers, slowed: Sequence[int]) -> None:
        """Add the steps that follow; ``slowed`` are the indices of those that a window slowed."""
        begin = 0
        if not self._has_begun:
            begin = min(slowed, default=len(durations_ns))
            self._before.extend(durations_ns[max(0, begin - STEPS) : begin])
            self._has_begun = len(slowed) > 0
        room = STEPS - len(self._after)
        if self._has_begun and room:
            left_out = set(slowed)
            normal = (durations_ns[at] for at in range(begin, len(durations_ns)) if at not in left_out)
            self._after += islice(normal, room)

    def compared(self) -> AroundCapture | None:
        """Return both medians; None without a capture, or with too few steps on a side."""
        if len(self._before) < STEPS_NEEDED or len(self._after) < STEPS:
            return None
        before, after = (np.asarray(side, np.float64) / NS_PER_S for side in (self._before, self._after))
        before_s, after_s = float(np.median(before)), float(np.median(after))
        error_s = np.hypot(_error_of(before, before_s), _error_of(after, after_s))
        return AroundCapture(before_s, after_s, float(error_s))


def _error_of(values: Floats, median: float) -> float:
    return _ERROR_OF_MEDIAN * float(np.median(np.abs(values - median))) / sqrt(len(values))
