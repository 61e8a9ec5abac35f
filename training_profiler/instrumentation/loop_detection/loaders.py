"""Which data loader an iterator belongs to: an epoch makes a new iterator, often of the same loader."""

import weakref
from collections.abc import Callable
from typing import Any, Final

from training_profiler.recording.data_loader import LoaderBook, LoaderCounts

MOST_LOADERS: Final = 32  # told apart; further ones share one
OTHER_LOADERS: Final = "(other loaders)"


class _Seen:
    """An object of the user's that is to be known again, and is not held."""

    def __init__(self, one: Any) -> None:
        self._id = id(one)
        try:
            self._alive: Callable[[], Any] | None = weakref.ref(one)
        except TypeError:  # a list: whether it is gone cannot be told
            self._alive = None

    def is_it(self, one: Any) -> bool:
        """Return whether ``one`` is that object."""
        return self._id == id(one) if self._alive is None else self._alive() is one

    @property
    def is_gone(self) -> bool:
        """Whether the object is no more, as far as that can be told."""
        return self._alive is not None and self._alive() is None


class _Known:
    """A loader seen before: what it draws indices from, and its data set."""

    def __init__(self, counts: LoaderCounts, iterator: Any) -> None:
        self.counts = counts
        self.look = _look(iterator)
        self.follow(iterator)

    def follow(self, iterator: Any) -> None:
        """Let this be the loader of ``iterator``."""
        self.sampler, self.data = _Seen(iterator._index_sampler), _Seen(iterator._dataset)


class KnownLoaders:
    """The loaders whose batches a seam has seen, in the order of their first.

    A loader is told by the object that it draws indices from, which it keeps for all its passes. A loader made anew for
    each epoch is the one before it if that is gone, looked the same and had the same data set, or one that is gone too.
    """

    def __init__(self, book: LoaderBook) -> None:
        self._book = book
        self._known: list[_Known] = []
        self._others: LoaderCounts | None = None

    def counts_of(self, iterator: Any) -> LoaderCounts | None:
        """Return the counts of the loader behind an iterator of a ``DataLoader``; None of one that is not as known."""
        try:
            known = self._find(iterator)
            if known is not None:
                known.follow(iterator)
                return known.counts
            if len(self._known) < MOST_LOADERS:
                begun = _Known(self._book.begin_watched(), iterator)
                self._known.append(begun)
                return begun.counts
        except Exception:  # private attributes of torch, and classes of the user's
            return None
        if self._others is None:
            self._others = self._book.begin_watched(OTHER_LOADERS)
        return self._others

    def _find(self, iterator: Any) -> _Known | None:
        sampler, data = iterator._index_sampler, iterator._dataset
        for known in self._known:
            if known.sampler.is_it(sampler):
                return known
        look = _look(iterator)
        gone = [known for known in self._known if known.sampler.is_gone and known.look == look]
        of_same_data = [known for known in gone if known.data.is_it(data)]
        return next(iter(of_same_data or [known for known in gone if known.data.is_gone]), None)


def _look(iterator: Any) -> tuple[Any, ...]:
    """Return what two loaders made by the same line have in common."""
    sampler = iterator._index_sampler
    inner = getattr(sampler, "sampler", None)
    return (
        type(iterator._dataset),
        type(sampler),
        type(inner),
        getattr(sampler, "batch_size", None),
        getattr(sampler, "drop_last", None),
    )
