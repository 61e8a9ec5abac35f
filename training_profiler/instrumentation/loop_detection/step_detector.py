"""Training steps from updates of optimizers: one step is one logical update."""

import weakref
from collections import Counter
from collections.abc import Callable
from typing import Any, Final

ENDED_AFTER_NEW: Final = 8  # updates of an optimizer never seen beside the lead, without the lead
ENDED_AFTER_FIRST: Final = 64  # the same while the lead has led no round to its end
ENDED_RATIO: Final = 4  # and of one seen beside it: as many times its most in one round, and some
ENDED_SLACK: Final = 16


class StepDetector:
    """Ends a step when the optimizer that began it, the lead, updates again.

    What others update in between is part of the same step, so the end of a step with several optimizers is
    only known when the next is under way; with a single one each update ends its step at once. A lead that does
    not come back while another goes on (a second phase of the training) is followed by that other.
    """

    def __init__(self, end_step: Callable[[int], None]) -> None:
        self._end_step = end_step
        self.lead = 0  # id of an optimizer
        self._lead_alive: Callable[[], Any] = lambda: None
        self._lead_end_ns: int | None = None  # end of the lead's last update, while its step is not ended
        self.pending_ns: int | None = None  # where that step ends as far as is known
        self._others: list[tuple[int, int, Callable[[], Any]]] = []  # (id, end of update, alive) since then
        self._most: Counter[int] = Counter()  # the most updates of another optimizer in a round
        self._step_detector = 0
        self.is_alone = False  # the lead has led rounds, and always without others

    def updated(self, optimizer: Any, end_ns: int) -> None:
        """Note that ``optimizer`` has updated its parameters; ``end_ns`` ascends from call to call."""
        self._note(id(optimizer), _alive(optimizer), end_ns)

    def _note(self, key: int, alive: Callable[[], Any], end_ns: int) -> None:
        if key == self.lead:
            self._lead_again(end_ns)
        elif not self.lead:
            self._follow(key, alive, end_ns)
        else:
            self._others.append((key, end_ns, alive))
            self.is_alone = False
            if self._has_ended(key) and self._switch():
                return
            if self.pending_ns is not None:
                self.pending_ns = end_ns

    def finish(self) -> None:
        """End the step that still waits, for the training has ended."""
        while self._others and self._was_left():
            self._switch()
        self.end_waiting()

    def end_waiting(self) -> None:
        """End the step that still waits; what updates before the lead does is part of none."""
        if self.pending_ns is not None:
            self._end_step(self.pending_ns)
            self.pending_ns = None

    def _was_left(self) -> bool:
        """Return whether those that updated after the lead's last step go on without it, now that all has ended."""
        later = self._others[self._count_of_last_step() :]
        if not later:
            return False
        key = later[0][0]
        count = sum(other == key for other, _, _ in later)
        return not self._most[key] if self._step_detector else count >= 2

    def _count_of_last_step(self) -> int:
        """Return how many of the others' updates are part of the lead's last step, as in its steps before."""
        seen: Counter[int] = Counter()
        for at, (key, _, _) in enumerate(self._others):
            seen[key] += 1
            if seen[key] > self._most[key]:
                return at
        return len(self._others)

    def forget(self) -> None:
        """Drop the step that waits: somebody else says where steps end."""
        self.pending_ns = None

    def _lead_again(self, end_ns: int) -> None:
        self.end_waiting()
        for key, count in Counter(key for key, _, _ in self._others).items():
            self._most[key] = max(self._most[key], count)
        self._others.clear()
        self._step_detector += 1
        self._wait_or_end(end_ns)

    def _wait_or_end(self, end_ns: int) -> None:
        self.is_alone = self._step_detector > 1 and not self._most
        if self._step_detector and not self._most:
            self._end_step(end_ns)
            self._lead_end_ns = self.pending_ns = None
        else:
            self._lead_end_ns = self.pending_ns = end_ns

    def _follow(self, key: int, alive: Callable[[], Any], end_ns: int) -> None:
        self.lead, self._lead_alive = key, alive
        self._step_detector = 0
        self._most.clear()
        self._wait_or_end(end_ns)

    def _has_ended(self, key: int) -> bool:
        """Return whether the lead will not come back, as far as updates of ``key`` without it tell."""
        if self._lead_alive() is None:
            return True
        count = sum(other == key for other, _, _ in self._others)
        if not self._step_detector:
            return count > ENDED_AFTER_FIRST
        usual = self._most[key]
        return count >= ENDED_AFTER_NEW if not usual else count > ENDED_RATIO * usual + ENDED_SLACK

    def _switch(self) -> bool:
        """Let the optimizer lead that updated first after the lead's last step; return whether there is one."""
        count = self._count_of_last_step()
        own, later = self._others[:count], self._others[count:]
        if not later:
            return False
        if self.pending_ns is not None:
            self.pending_ns = own[-1][1] if own else self._lead_end_ns
        self.end_waiting()
        self._others = []
        key, end_ns, alive = later[0]
        self._follow(key, alive, end_ns)
        for key, end_ns, alive in later[1:]:
            self._note(key, alive, end_ns)
        return True


def _alive(optimizer: Any) -> Callable[[], Any]:
    """Return a function that returns None once the optimizer is gone."""
    try:
        return weakref.ref(optimizer)
    except TypeError:  # a class with __slots__
        return lambda: True
