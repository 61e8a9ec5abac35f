"""A data loader whose fetches are timed, and that is the user's loader in every other respect."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final, Generic, TypeVar

from training_profiler.record.names import printable
from training_profiler.record.section import Section

Batch = TypeVar("Batch")


class LoaderCounts:
    """What went through one loader: batches, samples (None once unknown) and the time of its fetches."""

    __slots__ = ("batches", "name", "samples", "training_batches", "training_samples", "wait_ns")

    def __init__(self, name: str) -> None:
        self.name = name
        self.batches = 0
        self.samples: int | None = 0
        self.wait_ns = 0
        self.training_batches = 0  # those fetched outside of validation
        self.training_samples: int | None = 0

    def add(self, size: int | None, wait_ns: int, is_training: bool) -> None:
        """Count one batch of ``size`` samples (None: unknown) that was waited for ``wait_ns``."""
        self.batches += 1
        self.wait_ns += wait_ns
        self.samples = _sum(self.samples, size)
        if is_training:
            self.training_batches += 1
            self.training_samples = _sum(self.training_samples, size)


class LoaderBook:
    """The counts of all loaders of a run."""

    def __init__(self) -> None:
        self._counts: dict[int | str, LoaderCounts] = {}
        self._at_epoch: tuple[int, int | None] = (0, 0)
        self._taken: tuple[int, int | None] = (0, 0)

    def counts_of(self, loader: object, name: str | None) -> LoaderCounts:
        """Return the counts of a loader: those it has already where it is profiled anew each epoch."""
        key = id(loader) if name is None else printable(str(name))
        if key not in self._counts:
            self._counts[key] = LoaderCounts(str(len(self._counts)) if name is None else str(key))
        return self._counts[key]

    @property
    def all(self) -> list[LoaderCounts]:
        """The counts of all loaders profiled so far."""
        return list(self._counts.values())

    def take(self) -> tuple[int | None, int | None]:
        """Return (batches, samples) of training since the last call; None where no loader is known, or its samples."""
        batches_before, samples_before = self._taken
        batches, samples = self._taken = self._training()
        if not self._counts:
            return None, None
        if samples is None or samples_before is None:
            return batches - batches_before, None
        return batches - batches_before, samples - samples_before

    def begin_epoch(self) -> None:
        """Count for ``of_epoch`` from here."""
        self._at_epoch = self._training()

    def of_epoch(self) -> tuple[int | None, int | None]:
        """Return (batches, samples) of training since ``begin_epoch``; None where unknown."""
        batches, samples = self._training()
        batches_before, samples_before = self._at_epoch
        if batches == batches_before:
            return None, None
        known = samples is not None and samples_before is not None
        return batches - batches_before, samples - samples_before if known else None  # type: ignore[operator]

    def _training(self) -> tuple[int, int | None]:
        samples = [counts.training_samples for counts in self.all]
        known = [count for count in samples if count is not None]
        batches = sum(counts.training_batches for counts in self.all)
        return batches, sum(known) if len(known) == len(samples) else None


def _sum(so_far: int | None, size: int | None) -> int | None:
    return None if so_far is None or size is None else so_far + size


_OWN: Final = ("_clock", "_counts", "_is_training", "_loader", "_section")  # all else is the user's loader's


class ProfiledLoader(Generic[Batch]):
    """Iterates ``loader`` and books each wait for a batch under ``data_loading``.

    Every attribute not found here is the loader's own, so ``loader.sampler.set_epoch(n)`` goes on
    working. The fetch that finds the loader empty is no batch and is not counted as one; making the
    iterator (where workers start) is part of the first fetch.
    """

    def __init__(
        self,
        loader: Iterable[Batch],
        section: Callable[[str], Any],
        clock: Callable[[], int],
        counts: LoaderCounts,
        is_training: Callable[[], bool],
    ) -> None:
        self._loader = loader
        self._section = section
        self._clock = clock
        self._counts = counts
        self._is_training = is_training

    def __iter__(self) -> Iterator[Batch]:
        return _Fetches(self)

    def fetch(self, iterator: Iterator[Batch] | None) -> tuple[Iterator[Batch], Batch]:
        """Return the iterator, made where there is none yet, and its next batch.

        Raises:
            StopIteration: the loader is empty.
        """
        waiting = self._section("data_loading")
        begin_ns = self._clock()
        waiting.__enter__()
        try:
            iterator = iter(self._loader) if iterator is None else iterator
            batch = next(iterator)
        except StopIteration:
            cancel(waiting)
            raise
        except BaseException:
            waiting.__exit__(None, None, None)
            raise
        waiting.__exit__(None, None, None)
        wait_ns = self._clock() - begin_ns
        self._counts.add(batch_size(batch), wait_ns, self._is_training())
        return iterator, batch

    def __getitem__(self, index: Any) -> Any:
        return self._loader[index]  # type: ignore[index]

    def __len__(self) -> int:
        return len(self._loader)  # type: ignore[arg-type]

    def __getattr__(self, name: str) -> Any:
        if name == "_loader":  # not there yet while unpickling
            raise AttributeError(name)
        return getattr(self._loader, name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in _OWN:
            object.__setattr__(self, name, value)
        else:
            setattr(self._loader, name, value)


class ProfiledIterator(ProfiledLoader[Batch]):
    """A loader that is an iterator itself, such as ``iter(loader)`` or a generator."""

    def __next__(self) -> Batch:
        return self.fetch(self._loader)[1]  # type: ignore[arg-type]


class _Fetches(Generic[Batch]):
    """One pass over a profiled loader; all but its batches comes from the loader's own iterator."""

    def __init__(self, loader: ProfiledLoader[Batch]) -> None:
        self._profiled = loader
        self._iterator: Iterator[Batch] | None = None

    def __iter__(self) -> Iterator[Batch]:
        return self

    def __next__(self) -> Batch:
        self._iterator, batch = self._profiled.fetch(self._iterator)
        return batch

    def __len__(self) -> int:
        return len(self._made())  # type: ignore[arg-type]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # copying and pickling ask before there is anything to ask
            raise AttributeError(name)
        return getattr(self._made(), name)

    def _made(self) -> Iterator[Batch]:
        if self._iterator is None:
            self._iterator = iter(self._profiled._loader)
        return self._iterator


def cancel(waiting: Any) -> None:
    """End the span of ``waiting`` without counting it; its time falls to whatever encloses it."""
    if isinstance(waiting, Section):
        waiting.cancel()
    else:
        waiting.__exit__(None, None, None)


def batch_size(batch: object) -> int | None:
    """Return the length of the first dimension of the first tensor in ``batch``, or None."""
    try:
        for _ in range(4):  # deeper nestings are not searched: the first leaf is what counts
            shape = getattr(batch, "shape", None)
            if shape is not None:
                return int(shape[0]) if len(shape) else None
            if isinstance(batch, Mapping):
                batch = next(iter(batch.values()), None)
            elif isinstance(batch, (list, tuple)) and batch:
                batch = batch[0]
    except Exception:  # a batch is the user's own object: what it does when looked at must not hurt
        return None
    return None
