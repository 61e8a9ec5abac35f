"""Two traces of the same training side by side: what a step takes before and after, and what is noise."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from training_profiler.errors import TraceError
from training_profiler.trace_analysis.analysis import Analysis
from training_profiler.trace_analysis.device_activity import StepParts

STEPS_NEEDED: Final = 2
SAME_AT_LEAST: Final = 0.5  # of the operators' calls a step: below it these are steps of two different programs
BAND: Final = 2.0  # standard errors of a difference of means; beyond them chance is below 5 % for some steps


@dataclass(frozen=True, slots=True)
class Difference:
    """One category; ns a step."""

    name: str
    before_ns: float
    after_ns: float
    band_ns: float | None  # a difference within it may be chance; None where a side has one step

    @property
    def change_ns(self) -> float:
        """After less before."""
        return self.after_ns - self.before_ns

    @property
    def is_noise(self) -> bool | None:
        """Whether the difference may be chance; None where that cannot be told."""
        return None if self.band_ns is None else abs(self.change_ns) <= self.band_ns


@dataclass(frozen=True, slots=True)
class Comparison:
    """All categories, and utilization of the device in steps before and after, 0 to 1."""

    before: Analysis
    after: Analysis
    differences: tuple[Difference, ...]
    alike: float  # the part of the operators' calls a step that both have, 0 to 1

    @property
    def utilization(self) -> tuple[float | None, float | None]:
        """Of the device within steps."""
        return self.before.utilization_in_steps, self.after.utilization_in_steps


def compare(before: Analysis, after: Analysis) -> Comparison:
    """Return what differs a step.

    Raises:
        TraceError: the steps of the two cannot be compared; the message says why.
    """
    for found in (before, after):
        if len(found.steps) < STEPS_NEEDED:
            raise TraceError(
                f"{found.path} has {_steps_text(len(found.steps))}, and a comparison needs {STEPS_NEEDED}: "
                f"record more, and call profiler.step() after each"
            )
    if before.has_gpu != after.has_gpu:
        without = after if before.has_gpu else before
        raise TraceError(f"only one of the two has work of a device: {without.path} has none")
    alike = _alike(_calls_a_step(before), _calls_a_step(after))
    if alike < SAME_AT_LEAST:
        raise TraceError(
            f"the steps are not of the same program: only {alike:.0%} of the calls of operators are in both "
            f"({before.path.name}, {after.path.name})"
        )
    parts: list[tuple[str, Callable[[StepParts], int]]] = [("step", lambda step: step.wall_ns)]
    if before.has_gpu:
        parts += [
            ("compute", lambda step: step.compute_ns),
            ("exposed communication", lambda step: step.exposed_communication_ns),
            ("exposed copies", lambda step: step.exposed_copies_ns),
            ("idle", lambda step: step.idle_ns),
        ]
    rows = [_difference(name, *([part(s) for s in found.steps] for found in (before, after))) for name, part in parts]
    if before.waiting.data_names or after.waiting.data_names:
        rows.append(_difference("DataLoader (host)", before.waiting.data_ns, after.waiting.data_ns))
    return Comparison(before, after, tuple(rows), alike)


def _steps_text(count: int) -> str:
    return {0: "no marked step", 1: "one step"}.get(count, f"{count} steps")


def _difference(name: str, before: Sequence[int], after: Sequence[int]) -> Difference:
    one, other = np.array(before, np.float64), np.array(after, np.float64)
    band = None
    if len(one) > 1 and len(other) > 1:
        # Standard error of a difference of means with unequal variances (Welch 1947).
        band = BAND * float(np.sqrt(one.var(ddof=1) / len(one) + other.var(ddof=1) / len(other)))
    return Difference(name, float(one.mean()), float(other.mean()), band)


def _calls_a_step(analysis: Analysis) -> dict[str, float]:
    return {one.name: one.calls / len(analysis.steps) for one in analysis.operators if one.name.startswith("aten::")}


def _alike(one: Mapping[str, float], other: Mapping[str, float]) -> float:
    names = one.keys() | other.keys()
    both = sum(min(one.get(name, 0.0), other.get(name, 0.0)) for name in names)
    either = sum(max(one.get(name, 0.0), other.get(name, 0.0)) for name in names)
    return both / either if either else 1.0
