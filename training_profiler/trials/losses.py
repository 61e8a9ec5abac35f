"""The losses of two trainings, step by step."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from math import isfinite, isnan
from typing import Final

from training_profiler.model.bounds import Count, Positive

IDENTICAL, APART, DIFFERS = "identical", "apart", "differs"
NOT_REPEATABLE, UNKNOWN = "not repeatable", "unknown"
ROUNDING: Final = 1e-4  # relative; a first difference beyond it comes from no other order of the same additions
AFTER_FIRST: Final = 10  # steps after the first difference, before rounding has grown through the training

Losses = Sequence[Sequence[str]]  # of each step, in hexadecimal


@dataclass(frozen=True, slots=True)
class LossComparison:
    """How far the losses of a changed training are from those of the unchanged one."""

    kind: str
    apart: Positive | None = None  # the largest relative difference in the first steps that differ
    steps: Count = 0  # compared

    def __str__(self) -> str:
        if self.kind == APART:
            return f"{_rounded(self.apart)} apart"
        if self.kind == DIFFERS:
            return "differs" if self.apart is None else f"differs ({_rounded(self.apart)})"
        return "-" if self.kind == UNKNOWN else self.kind


def compare_losses(changed: Losses, unchanged: Losses, again: Losses) -> LossComparison:
    """Return how the losses of a changed training compare with those of two unchanged ones."""
    found = _compare(changed, unchanged)
    if found.kind in (APART, DIFFERS) and _compare(again, unchanged).kind in (APART, DIFFERS):
        return LossComparison(NOT_REPEATABLE, steps=found.steps)
    return found


def _compare(changed: Losses, unchanged: Losses) -> LossComparison:
    steps = min(len(changed), len(unchanged))
    if not any(unchanged[:steps]) or not any(changed[:steps]):
        return LossComparison(UNKNOWN)
    if any(len(new) != len(old) for new, old in zip(changed, unchanged, strict=False)):
        return LossComparison(DIFFERS, steps=steps)
    by_step = (max(map(_apart, new, old), default=0.0) for new, old in zip(changed, unchanged, strict=False))
    differing = _from_first(by_step)
    if not differing:
        return LossComparison(IDENTICAL, steps=steps)
    kind = APART if differing[0] <= ROUNDING else DIFFERS
    largest = max(differing)
    return LossComparison(kind, largest if isfinite(largest) else None, steps)


def _from_first(by_step: Iterator[float]) -> list[float]:
    """Return the differences of the first step that differs and of those after it."""
    for apart in by_step:
        if apart > 0:
            return [apart, *islice(by_step, AFTER_FIRST - 1)]
    return []


def _apart(new: str, old: str) -> float:
    if new == old:
        return 0.0
    first, second = float.fromhex(new), float.fromhex(old)
    if isnan(first) or isnan(second):
        return float("inf")
    largest = max(abs(first), abs(second))
    return abs(first - second) / largest if isfinite(largest) else float("inf")


def _rounded(apart: float | None) -> str:
    return "" if apart is None else f"{apart:.0e}".replace("e-0", "e-").replace("e+0", "e+")
