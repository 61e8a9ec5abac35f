"""Training steps from optimizer updates: one step is one logical update."""

import weakref
from collections import Counter
from collections.abc import Callable
from typing import Any, Final

from training_profiler.recording.fields import Fields, field

# The primary optimizer has ended after so many updates of another optimizer without it:
MISSED_BY_NEW: Final = 8  # by an optimizer that was never used together with the primary
MISSED_IN_FIRST_STEP: Final = 64  # before the primary has completed a step
MISSED_RATIO: Final = 4  # times the most updates of that optimizer in one step, plus
MISSED_SLACK: Final = 16


class StepDetector(Fields):
    """Ends a step when the optimizer that began it, the primary optimizer, updates again.

    Updates of other optimizers in between are part of the same step. So with several optimizers the end of a step is
    only known during the next one; with a single one each update ends its step at once. If the primary is no longer
    used while another optimizer is, as in a second training phase, that one becomes the primary.
    """

    is_alone: bool = field(0)  # the primary has completed steps, and always without others
    primary: int = field(1)  # id of an optimizer

    def __init__(self, end_step: Callable[[int], None]) -> None:
        self._end_step = end_step
        self.primary = 0
        self._primary_reference: Callable[[], Any] = lambda: None
        self._primary_end_ns: int | None = None  # end of the primary's last update, until its step ends
        self.pending_ns: int | None = None  # the end of that step as known so far
        self._others: list[tuple[int, int, Callable[[], Any]]] = []  # (id, end of update, reference) since then
        self._most: Counter[int] = Counter()  # the most updates of another optimizer in one step
        self._primary_steps = 0  # completed
        self.is_alone = False

    def updated(self, optimizer: Any, end_ns: int) -> None:
        """Handle an update of ``optimizer`` that ended at ``end_ns``, which ascends from call to call."""
        self._updated(id(optimizer), _reference(optimizer), end_ns)

    def _updated(self, key: int, reference: Callable[[], Any], end_ns: int) -> None:
        if key == self.primary:
            self._primary_updated(end_ns)
        elif not self.primary:
            self._use_as_primary(key, reference, end_ns)
        else:
            self._others.append((key, end_ns, reference))
            self.is_alone = False
            if self._has_primary_ended(key) and self._switch_primary():
                return
            if self.pending_ns is not None:
                self.pending_ns = end_ns

    def close(self) -> None:
        """End the pending step at the end of the training."""
        while self._others and self._was_replaced():
            self._switch_primary()
        self.end_pending()

    def end_pending(self) -> None:
        """End the pending step; updates before the primary's next one belong to no step."""
        if self.pending_ns is not None:
            self._end_step(self.pending_ns)
            self.pending_ns = None

    def _was_replaced(self) -> bool:
        """Return whether the optimizers after the primary's last step went on without it, now that all has ended."""
        later = self._others[self._count_of_last_step() :]
        if not later:
            return False
        key = later[0][0]
        count = sum(other == key for other, _, _ in later)
        return not self._most[key] if self._primary_steps else count >= 2

    def _count_of_last_step(self) -> int:
        """Return how many updates of other optimizers belong to the primary's last step, as in steps before."""
        counts: Counter[int] = Counter()
        for at, (key, _, _) in enumerate(self._others):
            counts[key] += 1
            if counts[key] > self._most[key]:
                return at
        return len(self._others)

    def discard_pending(self) -> None:
        """Drop the pending step: from now on the program marks steps itself."""
        self.pending_ns = None

    def _primary_updated(self, end_ns: int) -> None:
        self.end_pending()
        for key, count in Counter(key for key, _, _ in self._others).items():
            self._most[key] = max(self._most[key], count)
        self._others.clear()
        self._primary_steps += 1
        self._end_now_or_later(end_ns)

    def _end_now_or_later(self, end_ns: int) -> None:
        self.is_alone = self._primary_steps > 1 and not self._most
        if self._primary_steps and not self._most:
            self._end_step(end_ns)
            self._primary_end_ns = self.pending_ns = None
        else:
            self._primary_end_ns = self.pending_ns = end_ns

    def _use_as_primary(self, key: int, reference: Callable[[], Any], end_ns: int) -> None:
        self.primary, self._primary_reference = key, reference
        self._primary_steps = 0
        self._most.clear()
        self._end_now_or_later(end_ns)

    def _has_primary_ended(self, key: int) -> bool:
        """Return whether the primary seems to be no longer used, judging by the updates of ``key`` without it."""
        if self._primary_reference() is None:
            return True
        count = sum(other == key for other, _, _ in self._others)
        if not self._primary_steps:
            return count > MISSED_IN_FIRST_STEP
        most = self._most[key]
        return count >= MISSED_BY_NEW if not most else count > MISSED_RATIO * most + MISSED_SLACK

    def _switch_primary(self) -> bool:
        """Make the first optimizer after the primary's last step the primary; return whether there is one."""
        count = self._count_of_last_step()
        own, later = self._others[:count], self._others[count:]
        if not later:
            return False
        if self.pending_ns is not None:
            self.pending_ns = own[-1][1] if own else self._primary_end_ns
        self.end_pending()
        self._others = []
        key, end_ns, reference = later[0]
        self._use_as_primary(key, reference, end_ns)
        for key, end_ns, reference in later[1:]:
            self._updated(key, reference, end_ns)
        return True


def _reference(optimizer: Any) -> Callable[[], Any]:
    """Return a function that returns None once the optimizer is gone."""
    try:
        return weakref.ref(optimizer)
    except TypeError:  # a class with __slots__
        return lambda: True
