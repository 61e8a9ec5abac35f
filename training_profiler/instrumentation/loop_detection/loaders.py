"""Finds the data loader of an iterator. Each epoch makes a new iterator, often of the same loader."""

from collections.abc import Callable
from typing import Any, Final

from training_profiler.recording.data_loader import LoaderArguments, LoaderCounts, LoaderRegistry, loader_arguments
from training_profiler.recording.object_identity import ObjectIdentity

MAX_LOADERS: Final = 32  # further ones share one entry
OTHER_LOADERS: Final = "(other loaders)"


class _KnownLoader:
    """A loader found before: its sampler and its data set."""

    def __init__(self, counts: LoaderCounts, iterator: Any) -> None:
        self.counts = counts
        self.signature = _signature(iterator)
        self.follow(iterator)

    def follow(self, iterator: Any) -> None:
        """Take ``iterator`` as the latest one of this loader."""
        self.sampler, self.data = ObjectIdentity(iterator._index_sampler), ObjectIdentity(iterator._dataset)


class KnownLoaders:
    """The loaders found by the patches, in the order of their first batches.

    A loader is recognized by its index sampler, which it keeps for all passes. A program may also make a new loader for
    each epoch. It continues an earlier loader that is gone and had the same signature and data set. The data set may
    differ if the earlier one is gone too. ``place_of`` returns the user's line that made the loader of a sampler.
    """

    def __init__(self, registry: LoaderRegistry, place_of: Callable[[Any], str] = lambda sampler: "") -> None:
        self._registry = registry
        self._place_of = place_of
        self._known: list[_KnownLoader] = []
        self._others: LoaderCounts | None = None

    def counts_of(self, iterator: Any) -> LoaderCounts | None:
        """Return the counts of the loader of a ``DataLoader`` iterator; None if it lacks the expected attributes."""
        try:
            known = self._find(iterator)
            if known is not None:
                is_remade = not known.sampler.matches(iterator._index_sampler)
                known.follow(iterator)
                known.counts.use_arguments(self._arguments(iterator, is_remade))
                return known.counts
            if len(self._known) < MAX_LOADERS:
                new = _KnownLoader(self._registry.add_inferred(), iterator)
                self._known.append(new)
                new.counts.use_arguments(self._arguments(iterator))
                return new.counts
        except Exception:  # private attributes of torch, and classes of the user's
            return None
        if self._others is None:
            self._others = self._registry.add_inferred(OTHER_LOADERS)
        return self._others

    def _arguments(self, iterator: Any, is_remade: bool = False) -> LoaderArguments | None:
        arguments = loader_arguments(iterator, "_")
        made_at = self._place_of(iterator._index_sampler)
        return None if arguments is None else arguments._replace(is_remade=is_remade, made_at=made_at)

    def _find(self, iterator: Any) -> _KnownLoader | None:
        sampler, data = iterator._index_sampler, iterator._dataset
        for known in self._known:
            if known.sampler.matches(sampler):
                return known
        signature = _signature(iterator)
        gone = [known for known in self._known if known.sampler.is_gone and known.signature == signature]
        of_same_data = [known for known in gone if known.data.matches(data)]
        return next(iter(of_same_data or [known for known in gone if known.data.is_gone]), None)


def _signature(iterator: Any) -> tuple[Any, ...]:
    """Return what loaders made by the same line of code have in common."""
    sampler = iterator._index_sampler
    inner = getattr(sampler, "sampler", None)
    return (
        type(iterator._dataset),
        type(sampler),
        type(inner),
        getattr(sampler, "batch_size", None),
        getattr(sampler, "drop_last", None),
    )
