"""Pauses: time in which a training stood still, by its cause."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

YOUNG: Final = ("generation 0", "generation 1")  # kinds of collections
FULL: Final = "generation 2"
ASKED: Final = "gc.collect()"  # of any generation


@dataclass(frozen=True, slots=True)
class Pause:
    """Time within steps in which the training stood still for one cause, in s."""

    cause: str
    seconds: float
    least_s: float
    most_s: float


@dataclass(frozen=True, slots=True)
class CollectionStats:
    """The garbage collections of one kind on the training thread."""

    count: int = 0
    total_s: float = 0.0
    step_count: int = 0  # of them, within training steps
    step_total_s: float = 0.0
    steps: int = 0  # that had one
    longest_s: float = 0.0  # within steps
    longest_step: int = 0  # counted from 1


@dataclass(frozen=True, slots=True)
class GarbageStats:
    """The garbage collections of a stretch of a run."""

    steps: int  # of which all collections are known
    by_kind: Mapping[str, CollectionStats] = field(default_factory=dict)
    share_of_step: float = 0.0  # their part of the time of those steps after the first ten, 0 to 1
    explained: float = 0.0  # their part of the variance of the time of those steps

    @property
    def step_total_s(self) -> float:
        """Their time within training steps."""
        return self.of(*self.by_kind).step_total_s

    def of(self, *kinds: str) -> CollectionStats:
        """Return the stats of these kinds together; ``steps`` is then the most of one of them."""
        found = [self.by_kind[kind] for kind in kinds if kind in self.by_kind]
        longest = max(found, key=lambda stats: stats.longest_s, default=CollectionStats())
        return CollectionStats(
            sum(stats.count for stats in found),
            sum(stats.total_s for stats in found),
            sum(stats.step_count for stats in found),
            sum(stats.step_total_s for stats in found),
            max((stats.steps for stats in found), default=0),
            longest.longest_s,
            longest.longest_step,
        )
