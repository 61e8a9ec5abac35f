"""The step from which on memory grows, or is more than before."""

from typing import Final

import numpy as np

from training_profiler.aggregation.arrays import Floats
from training_profiler.aggregation.change_point import ChangePoint, change_point
from training_profiler.aggregation.history import MemoryPoint
from training_profiler.snapshot.machine import MemoryChange

LEAST_BYTES: Final = 16 * 2**20  # between the least and the most; looking for a change of less takes time in vain
LAST: Final = 3  # thirds of the time after a change: growth goes on in the last of them


def memory_change(points: list[MemoryPoint], device: int | None = None) -> MemoryChange | None:
    """Return since when memory grows, else since when it is more; None where it does neither, or chance may explain it.

    Args:
        points: memory over the steps of a run.
        device: the index of the accelerator whose memory it is; None for the process.
    """
    steps = np.array([point.step for point in points], np.float64)
    memory = np.array([point.bytes for point in points], np.float64)
    if len(points) < 2 or np.ptp(memory) < LEAST_BYTES or not (np.diff(steps) > 0).all():
        return None
    growth = np.diff(memory) / np.diff(steps)  # bytes a step
    onset = change_point(growth)
    if onset is not None and onset.after > max(0.0, onset.before) and _goes_on(growth, onset):
        return _change(onset, steps, float(memory[onset.at]), float(memory[-1]), device, grows=True)
    jump = change_point(memory)
    if jump is None or not jump.is_abrupt or jump.after <= jump.before:
        return None
    return _change(jump, steps, jump.before, jump.after, device, grows=False)


def _goes_on(growth: Floats, onset: ChangePoint) -> bool:
    after = growth[onset.at :]
    return bool(np.median(after[-max(1, len(after) // LAST) :]) > max(0.0, onset.before))


def _change(
    found: ChangePoint, steps: Floats, before: float, after: float, device: int | None, *, grows: bool
) -> MemoryChange:
    first, at, last = (int(steps[place]) for place in (found.first, found.at, found.last))
    return MemoryChange(at + 1, first + 1, last + 1, before, after, grows, device)
