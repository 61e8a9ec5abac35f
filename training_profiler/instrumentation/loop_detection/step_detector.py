"""Training steps from optimizer updates, one logical update each, and epochs from passes over the data."""

import weakref
from collections import Counter
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from training_profiler.instrumentation.loop_detection.loader_passes import LoaderPass, Passes, PassPhase
from training_profiler.recording.event_codes import Fields, field
from training_profiler.recording.recorder import Recorder

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
        self._updated(id(optimizer), weakref.ref(optimizer), end_ns)

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
            at_ns, self.pending_ns = self.pending_ns, None  # first: the end of a step may end the training
            self._end_step(at_ns)

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
            self._primary_end_ns = self.pending_ns = None
            self._end_step(end_ns)
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


class StepEnds:
    """Called at the end of each step, with its time.

    The session is asked only where something may be due: at the steps and times that it has set in the recorder, and
    where the batches come from another pass than at the last step, for an epoch may begin there. In a step of 0.25 ms,
    which evicts them from the caches, the session's functions take several microseconds.
    """

    def __init__(self, recorder: Recorder, end_step: Callable[[int], None]) -> None:
        self.recorder, self._end_step = recorder, end_step
        self._passes: Passes | None = None
        self._latest: object = self  # the pass at the last step; none has ended

    def follow(self, passes: Passes) -> None:
        """Ask the session whenever ``passes`` have another latest one."""
        self._passes = passes

    def __call__(self, at_ns: int) -> None:
        """End a step at ``at_ns``."""
        latest: LoaderPass | None = None if self._passes is None else self._passes.latest
        if latest is self._latest and self.recorder.ends_quietly(at_ns):
            return
        self._latest = latest
        self._end_step(at_ns)


class EpochBoundary(NamedTuple):
    """One epoch ends and the next begins, at the first fetch of its pass."""

    at_ns: int
    number: int  # of the epoch that begins, counted from 1
    batches: int | None  # of the epoch that ended; None for the first boundary
    samples: int | None


class EpochDetector:
    """Called at the end of each step; reports each epoch boundary once.

    Epochs exist only if all training batches come from passes over one loader, one after the other. Interleaved
    passes, or loaders of different kinds, have no clear epochs.
    """

    def __init__(self) -> None:
        self.is_off = False  # for good: the program marks epochs itself, or has none
        self.current: LoaderPass | None = None
        self.number = 0
        self.unclear_after = 0  # complete epochs before batches came from other loaders, too; 0 while that is not so
        self._latest: LoaderPass | None = None  # at the last step

    def switch_off(self) -> None:
        """Detect no more epochs: the program marks them itself."""
        self.is_off = True

    def is_same(self, latest: LoaderPass | None) -> bool:
        """Return whether nothing changed since the last step, as in nearly all steps."""
        return latest is self._latest or self.is_off

    def next_boundary(self, latest: LoaderPass | None, is_alone: bool = True) -> EpochBoundary | None:
        """Return the boundary at which the pass ``latest`` begins; None if it begins no epoch.

        Args:
            latest: the pass fetched from last.
            is_alone: whether no other pass feeds the training at the same time.
        """
        self._latest = latest
        if latest is None or latest.kind is not PassPhase.TRAINING:
            return None
        before = self.current
        if before is latest:
            return None
        if not is_alone or (before is not None and not self._follows(before, latest)):
            self.is_off = True
            self.unclear_after = max(0, self.number - 1)
            return None
        self.current = latest
        self.number += 1
        batches, samples = (None, None) if before is None else (before.fetches, before.samples)
        return EpochBoundary(latest.begin_ns, self.number, batches, samples)

    def _follows(self, before: LoaderPass, latest: LoaderPass) -> bool:
        is_over = before.has_ended or (before.iterator() is None and before.fetches > 1)
        return is_over and latest.loader_id == before.loader_id and bool(latest.loader_id)

    def last(self) -> tuple[int | None, int | None, bool] | None:
        """Return (batches, samples, whether its pass has ended) of the epoch under way; None without one.

        An unfinished first pass may be the whole training, so it is not an epoch.
        """
        if self.is_off or self.current is None or (self.number == 1 and not self.current.has_ended):
            return None
        return self.current.fetches, self.current.samples, self.current.has_ended
