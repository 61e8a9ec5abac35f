"""Epochs of a training that marks none itself: passes over its only data loader, each with what follows it."""

from typing import NamedTuple

from training_profiler.instrumentation.loop_detection.loader_passes import LoaderPass, PassPhase


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

    __slots__ = ("_latest", "current", "is_off", "number", "unclear_after")

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
