"""A data loader whose fetches are timed, and that is the user's loader in every other respect."""

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final, Generic, Protocol, TypeVar

from training_profiler.recording.known_sections import DATA_LOADING
from training_profiler.recording.section import Section, ThreadBuffer
from training_profiler.recording.section_names import printable

Batch = TypeVar("Batch")
TRAIN: Final = "train"
VAL: Final = "val"

_serials = itertools.count(1)


class Counted(Protocol):
    """What counts the batches of one loader in one phase: by hand for good, by a seam for one pass."""

    @property
    def phase(self) -> str | None:
        """``TRAIN`` or ``VAL``; None while that is not known."""

    @property
    def batches(self) -> int:
        """How many there were."""

    @property
    def samples(self) -> int | None:
        """How many those had together; None once unknown."""


class Tally:
    """Batches of one phase, counted one by one."""

    __slots__ = ("batches", "phase", "samples", "wait_ns")

    def __init__(self, phase: str) -> None:
        self.phase = phase
        self.batches = 0
        self.samples: int | None = 0
        self.wait_ns = 0  # of fetches by hand; what seams saw of it is in the event stream

    def add(self, batches: int, samples: int | None, wait_ns: int = 0) -> None:
        """Count batches of so many samples together (None: unknown)."""
        self.batches += batches
        self.samples = None if self.samples is None or samples is None else self.samples + samples
        self.wait_ns += wait_ns


class LoaderCounts:
    """What went through one loader: batches, samples and the time of its fetches, by phase."""

    __slots__ = ("asked", "by_phase", "name", "passes", "serial")

    def __init__(self, name: str, serial: int | None = None) -> None:
        self.name = name
        self.serial = next(_serials) if serial is None else serial  # in no other run of this process, either
        self.asked: float | None = None  # share of the training's batches that the user asked for
        self.by_phase = {phase: Tally(phase) for phase in (TRAIN, VAL)}
        self.passes: list[Counted] = []  # under way, and not yet part of ``by_phase``

    def add(self, size: int | None, wait_ns: int, is_training: bool) -> None:
        """Count one batch of ``size`` samples (None: unknown) that was waited for ``wait_ns``."""
        self.by_phase[TRAIN if is_training else VAL].add(1, size, wait_ns)

    def of(self, phase: str) -> Tally:
        """Return all that went through in one phase."""
        settled, found = self.by_phase[phase], Tally(phase)
        found.add(settled.batches, settled.samples, settled.wait_ns)
        for one in list(self.passes):
            if one.phase == phase and one.batches:
                found.add(one.batches, one.samples)
        return found

    @property
    def batches(self) -> int:
        """Batches of both phases."""
        return self.of(TRAIN).batches + self.of(VAL).batches

    @property
    def samples(self) -> int | None:
        """Samples of both phases; None once unknown."""
        samples = [self.of(phase).samples for phase in (TRAIN, VAL)]
        return None if None in samples else sum(count or 0 for count in samples)

    @property
    def wait_ns(self) -> int:
        """Time of fetches by hand, in both phases."""
        return sum(tally.wait_ns for tally in self.by_phase.values())

    def end_pass(self, one: Counted) -> None:
        """Keep what a pass has counted, which is over; of one whose phase never showed nothing is kept."""
        if one in self.passes:
            self.passes.remove(one)
            if one.phase is not None and one.batches:
                self.by_phase[one.phase].add(one.batches, one.samples)


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
            self._counts[key] = LoaderCounts(self._next_name() if name is None else str(key))
        return self._counts[key]

    def begin_watched(self, name: str | None = None) -> LoaderCounts:
        """Return counts for a loader that a seam saw, under the next number where it has no name."""
        counts = LoaderCounts(name or self._next_name())
        self._counts[-counts.serial] = counts  # no id of an object is negative
        return counts

    def _next_name(self) -> str:
        taken = {counts.name for counts in self._counts.values()}
        return next(str(number) for number in itertools.count() if str(number) not in taken)

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
        tallies = [counts.of(TRAIN) for counts in self.all]
        known = [tally.samples for tally in tallies if tally.samples is not None]
        return sum(tally.batches for tally in tallies), sum(known) if len(known) == len(tallies) else None


_OWN: Final = ("_buffer", "_clock", "_counts", "_is_training", "_loader", "_section")  # all else is the user's loader's


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
        buffer: Callable[[], ThreadBuffer],
    ) -> None:
        self._loader = loader
        self._section = section
        self._clock = clock
        self._counts = counts
        self._is_training = is_training
        self._buffer = buffer

    def __iter__(self) -> Iterator[Batch]:
        return _Fetches(self)

    def fetch(self, iterator: Iterator[Batch] | None) -> tuple[Iterator[Batch], Batch]:
        """Return the iterator, made where there is none yet, and its next batch.

        Raises:
            StopIteration: the loader is empty.
        """
        waiting, buffer = self._section(DATA_LOADING), self._buffer()
        begin_ns = self._clock()
        buffer.comes_from(self._counts.serial, begin_ns)
        waiting.__enter__()
        was_fetching, buffer.is_fetching = buffer.is_fetching, True
        try:
            iterator = iter(self._loader) if iterator is None else iterator
            batch = next(iterator)
        except StopIteration:
            cancel(waiting)
            raise
        except BaseException:
            waiting.__exit__(None, None, None)
            raise
        finally:
            buffer.is_fetching = was_fetching
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
            kind = type(batch)  # most batches are one of these, and asking is the cheaper for it
            if kind is list or kind is tuple:
                batch = batch[0]  # type: ignore[index]
            elif kind is dict:
                batch = next(iter(batch.values()))  # type: ignore[attr-defined]
            elif hasattr(batch, "shape"):
                return int(batch.shape[0])
            elif isinstance(batch, Mapping):
                batch = next(iter(batch.values()), None)
            elif isinstance(batch, (list, tuple)):
                batch = batch[0]
            else:
                return None
        if hasattr(batch, "shape"):
            return int(batch.shape[0])
    except Exception:  # a batch is the user's own object: what it does when looked at must not hurt
        return None
    return None
