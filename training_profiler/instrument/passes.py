"""Passes over data loaders: whether one feeds the training or an evaluation shows while it goes on."""

import weakref
from collections.abc import Callable
from enum import Enum
from typing import Any, Final

from training_profiler.record.loader import TRAIN, VAL, LoaderCounts

MOST_PASSES: Final = 256  # of which batches were fetched and that have not ended; the oldest are forgotten


class Kind(Enum):
    """What the batches of a pass are for."""

    UNKNOWN = "unknown"
    TRAINING = "training"
    EVALUATION = "evaluation"


class Pass:
    """One pass of one iterator over its loader. Times in ns; 0 is never."""

    __slots__ = (
        "begin_ns",
        "counts",
        "cycle",
        "cycle_begin_ns",
        "end_ns",
        "fetches",
        "has_batch",
        "has_ended",
        "is_evaluated",
        "is_over",
        "iterator",
        "kind",
        "loader",
        "samples",
        "strikes",
    )

    def __init__(self, iterator: Any) -> None:
        self.iterator = weakref.ref(iterator)
        self.kind = Kind.UNKNOWN
        self.fetches = 0
        self.has_batch = False  # the last fetch gave one
        self.begin_ns = 0  # of the first fetch
        self.end_ns = 0  # of the last fetch
        self.cycle = -1  # the step it was last fetched in, counted in updates
        self.cycle_begin_ns = 0  # of the first fetch in that step
        self.is_evaluated = False  # its last batch saw calls without gradient before another was fetched
        self.has_ended = False  # its loader was found to be empty
        self.is_over = False  # and no batch of it was used while it went on
        self.counts: LoaderCounts | None = None  # of its loader; None of one that counts itself, and of one not known
        self.loader = 0  # serial of those, 0 for none
        self.samples: int | None = None  # in its batches; None for not counted
        self.strikes = 0  # how often training went on although it was taken for evaluation

    def is_of(self, counts: LoaderCounts) -> None:
        """Note which loader it is a pass over."""
        self.counts, self.loader, self.samples = counts, counts.serial, 0
        counts.passes.append(self)

    @property
    def phase(self) -> str | None:
        """What its batches count as; None while that is not known."""
        return _PHASES.get(self.kind)

    @property
    def batches(self) -> int:
        """How many batches were fetched."""
        return self.fetches


_PHASES: Final = {Kind.TRAINING: TRAIN, Kind.EVALUATION: VAL}


class Passes:
    """The passes under way. Iterators are held weakly, for workers end with them."""

    def __init__(self) -> None:
        self.unknown: list[Pass] = []  # with at least one batch fetched
        self.latest: Pass | None = None
        self.loader_of: Callable[[Any], LoaderCounts | None] = lambda iterator: None
        self._by_id: dict[int, Pass] = {}

    def of(self, iterator: Any, is_first: bool) -> Pass:
        """Return the pass of ``iterator``; a new one where it was never seen, or begins anew."""
        latest = self.latest
        if latest is not None and not is_first and latest.iterator() is iterator:
            return latest
        found = self._by_id.get(id(iterator))
        if found is None or is_first or found.iterator() is not iterator:
            found = self._begin(iterator)
        self.latest = found
        return found

    def _begin(self, iterator: Any) -> Pass:
        before = self._by_id.pop(id(iterator), None)
        if before is not None:
            _end(before)
        while len(self._by_id) >= MOST_PASSES:
            _end(self._by_id.pop(next(iter(self._by_id))))
        begun = self._by_id[id(iterator)] = Pass(iterator)
        counts = self.loader_of(iterator)
        if counts is not None:
            begun.is_of(counts)
        return begun

    def is_alone(self, one: Pass) -> bool:
        """Return whether no pass but ``one`` that feeds the training goes on."""
        return not any(
            other is not one and other.kind is Kind.TRAINING and not other.has_ended and other.iterator() is not None
            for other in self._by_id.values()
        )

    def wait_for(self, one: Pass) -> None:
        """Note that it is to be settled what the pass is for."""
        if len(self.unknown) >= MOST_PASSES:
            del self.unknown[0]
        self.unknown.append(one)

    def settle(self, one: Pass, kind: Kind) -> None:
        """Note what the pass is for."""
        one.kind = kind
        if one in self.unknown:
            self.unknown.remove(one)


def _end(one: Pass) -> None:
    if one.counts is not None:
        one.counts.end_pass(one)
