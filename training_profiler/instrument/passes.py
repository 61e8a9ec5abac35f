"""Passes over data loaders: whether one feeds the training or an evaluation shows while it goes on."""

import weakref
from enum import Enum
from typing import Any, Final

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
        "cycle",
        "cycle_begin_ns",
        "end_ns",
        "fetches",
        "has_batch",
        "is_evaluated",
        "is_over",
        "iterator",
        "kind",
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
        self.is_over = False  # and no batch of it was used while it went on
        self.strikes = 0  # how often training went on although it was taken for evaluation


class Passes:
    """The passes under way. Iterators are held weakly, for workers end with them."""

    def __init__(self) -> None:
        self.unknown: list[Pass] = []  # with at least one batch fetched
        self.latest: Pass | None = None
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
        while len(self._by_id) >= MOST_PASSES:
            del self._by_id[next(iter(self._by_id))]
        begun = self._by_id[id(iterator)] = Pass(iterator)
        return begun

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
