"""A data loader whose fetches are timed; in every other respect it is the user's loader."""

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import FunctionType
from typing import Any, Final, NamedTuple, TypeVar

from training_profiler.base.sections import DATA_LOADING
from training_profiler.base.text import printable
from training_profiler.model.loader_workers import OWN_COLLATE, TRAIN, VAL, Phase, PhaseCounts, WorkerSums
from training_profiler.recording.recorder import Recorder
from training_profiler.recording.section import Section
from training_profiler.recording.timed_function import StandIn, stand_in
from training_profiler.recording.tracebacks import hide_our_frames

Batch = TypeVar("Batch")
Known = TypeVar("Known", int, bool)
MAP_STYLE: Final = 0  # torch.utils.data._DatasetKind.Map
SUBSET: Final = ("torch.utils.data.dataset", "Subset")  # its __getitems__ asks for one sample after the other
COLLATE_MODULE: Final = "torch.utils.data._utils.collate"
MOST_SUBSETS: Final = 100  # in each other; one that holds itself would never end

_loader_ids = itertools.count(1)


class LoaderArguments(NamedTuple):
    """The arguments of a ``torch.utils.data.DataLoader`` that decide how fast it is; None is unknown."""

    num_workers: int
    persistent_workers: bool | None = None
    pin_memory: bool | None = None
    prefetch_factor: int | None = None
    is_remade: bool = False  # the program makes a new loader for each pass
    made_at: str = ""  # the user's line that made it; "" if unknown
    data_set: str = ""  # its class
    is_map_style: bool | None = None  # whether samples are asked for by number
    fetches_batches: bool | None = None  # whether the data set returns all samples of a batch at once
    collate: str | None = None  # torch's function that makes a batch of samples, or ``OWN_COLLATE``
    same_order: int = 0  # passes after the first, if a DistributedSampler gives all the same order


@dataclass(slots=True, eq=False)
class LoaderCounts:
    """The batches, samples and fetch time of one loader, by phase."""

    name: str
    loader_id: int = field(default_factory=lambda: next(_loader_ids))  # unique in all runs of this process
    other_names: Sequence[str] = ()  # where another loader of the phase has the name
    requested_share: float | None = None  # of the training's batches, as given by the user
    arguments: LoaderArguments | None = None  # None: it is not torch's loader
    workers: WorkerSums | None = None  # None: it has none, or they were not observed
    by_phase: dict[str, PhaseCounts] = field(default_factory=lambda: {each: PhaseCounts(each) for each in (TRAIN, VAL)})
    passes: list[Any] = field(default_factory=list)  # found by a patch, under way, and not yet part of ``by_phase``

    def use_arguments(self, arguments: LoaderArguments | None) -> None:
        """Remember the arguments of the loader; None keeps those known."""
        if arguments is not None:
            self.arguments = arguments

    def use_workers(self, workers: WorkerSums) -> None:
        """Remember what all workers of the loader did so far."""
        self.workers = workers

    def add(self, size: int | None, wait_ns: int, is_training: bool) -> None:
        """Count one batch of ``size`` samples (None: unknown) after a wait of ``wait_ns``."""
        self.by_phase[TRAIN if is_training else VAL].add(1, size, wait_ns)

    def of(self, phase: Phase) -> PhaseCounts:
        """Return the counts of one phase, including passes under way."""
        ended, counts = self.by_phase[phase], PhaseCounts(phase)
        counts.add(ended.batches, ended.samples, ended.wait_ns, ended.made, ended.cut_passes)
        for loader_pass in list(self.passes):
            if loader_pass.phase == phase and loader_pass.fetches:
                counts.add_pass(loader_pass)
        return counts

    @property
    def batches(self) -> int:
        """Batches of both phases."""
        return self.of(TRAIN).batches + self.of(VAL).batches

    @property
    def samples(self) -> int | None:
        """Samples of both phases; None if unknown."""
        samples = [self.of(phase).samples for phase in (TRAIN, VAL)]
        return None if None in samples else sum(count or 0 for count in samples)

    @property
    def wait_ns(self) -> int:
        """Time of profile_dataloader's fetches in both phases."""
        return sum(counts.wait_ns for counts in self.by_phase.values())

    def end_pass(self, loader_pass: Any) -> None:
        """Add the counts of a pass that is over. A pass of unknown phase is dropped."""
        if loader_pass in self.passes:
            self.passes.remove(loader_pass)
            if loader_pass.phase is not None and loader_pass.fetches:
                self.by_phase[loader_pass.phase].add_pass(loader_pass)


def loader_arguments(owner: object, prefix: str = "") -> LoaderArguments | None:
    """Return the arguments of a ``DataLoader``, or of its iterator with ``prefix="_"``; None if it is neither."""

    def read(name: str, kind: type[Known]) -> Known | None:
        value = getattr(owner, prefix + name, None)
        return value if isinstance(value, kind) else None

    workers = read("num_workers", int)
    if workers is None:
        return None
    data = type(behind_subsets(getattr(owner, prefix + "dataset", None)))
    style = getattr(owner, "_dataset_kind", None)
    return LoaderArguments(
        workers,
        read("persistent_workers", bool),
        read("pin_memory", bool),
        read("prefetch_factor", int),
        data_set=printable(data.__name__),
        is_map_style=None if style is None else style == MAP_STYLE,
        fetches_batches=hasattr(data, "__getitems__"),
        collate=_collate_of(getattr(owner, prefix + "collate_fn", None)),
    )


def _collate_of(function: object) -> str | None:
    if function is None:
        return None
    if not isinstance(function, FunctionType) or function.__module__ != COLLATE_MODULE:
        return OWN_COLLATE
    return printable(function.__name__)


def behind_subsets(data: Any) -> Any:
    """Return the data set whose samples ``torch.utils.data.Subset`` or ``random_split`` pass on; else ``data``."""
    for _ in range(MOST_SUBSETS):
        if (type(data).__module__, type(data).__qualname__) != SUBSET:
            break
        data = getattr(data, "dataset", None)
    return data


class LoaderRegistry:
    """The counts of all loaders of a run."""

    def __init__(self) -> None:
        self._counts: dict[int | str, LoaderCounts] = {}
        self._at_epoch: tuple[int, int | None] = (0, 0)
        self._drained: tuple[int, int | None] = (0, 0)

    def counts_of(self, loader: object, name: str | None) -> LoaderCounts:
        """Return the counts of a loader; the same ones if it is wrapped again in each epoch."""
        key = id(loader) if name is None else printable(str(name))
        if key not in self._counts:
            self._counts[key] = LoaderCounts(self._next_name() if name is None else str(key))
        self._counts[key].use_arguments(loader_arguments(loader))
        return self._counts[key]

    def add_inferred(self, names: Sequence[str] = ()) -> LoaderCounts:
        """Return new counts for a loader found by a patch: its names, the best first, or the next number."""
        counts = LoaderCounts(names[0] if names else self._next_name())
        counts.other_names = names[1:]
        self._counts[-counts.loader_id] = counts  # ids of objects are never negative
        return counts

    def _next_name(self) -> str:
        taken = {counts.name for counts in self._counts.values()}
        return next(str(number) for number in itertools.count() if str(number) not in taken)

    @property
    def all(self) -> list[LoaderCounts]:
        """The counts of all loaders so far."""
        return list(self._counts.values())

    def drain_interval(self) -> tuple[int | None, int | None]:
        """Return (batches, samples) of training since the last call; None if no loader, or its samples, are known."""
        before, self._drained = self._drained, self._training()
        return self._since(before) if self._counts else (None, None)

    def begin_epoch(self) -> None:
        """Start counting for ``epoch_counts``."""
        self._at_epoch = self._training()

    def epoch_counts(self) -> tuple[int | None, int | None]:
        """Return (batches, samples) of training since ``begin_epoch``; None if unknown."""
        batches, samples = self._since(self._at_epoch)
        return (batches, samples) if batches else (None, None)

    def _since(self, before: tuple[int, int | None]) -> tuple[int, int | None]:
        (batches, samples), (batches_before, samples_before) = self._training(), before
        is_known = samples is not None and samples_before is not None
        return batches - batches_before, samples - samples_before if is_known else None  # type: ignore[operator]

    def _training(self) -> tuple[int, int | None]:
        training = [counts.of(TRAIN) for counts in self.all]
        samples = [counts.samples for counts in training if counts.samples is not None]
        return sum(counts.batches for counts in training), sum(samples) if len(samples) == len(training) else None


@dataclass(slots=True, eq=False)
class FetchTimer:
    """Times the fetches of one loader as ``data_loading``, and counts its batches.

    The fetch that finds the loader empty is not counted. Creating the iterator, which starts workers, adds to the
    time of the first fetch.
    """

    counts: LoaderCounts
    recorder: Recorder  # whose sections and clock are used
    is_training: Callable[[], bool]  # whether batches are for training just now
    again: tuple[Any, ...] = ()  # a function and arguments: given another loader, it returns that profiled alike

    def create(self, loader: Iterable[Batch]) -> tuple[Iterator[Batch], int]:
        """Return the loader's own iterator, and how long that took in ns."""
        recorder = self.recorder
        buffer, begin_ns = recorder.buffer(), recorder.clock()
        buffer.record_loader(self.counts.loader_id, begin_ns)
        was_fetching, buffer.is_fetching = buffer.is_fetching, True
        try:
            with recorder.time_only_section(DATA_LOADING):
                iterator = iter(loader)
        finally:
            buffer.is_fetching = was_fetching
        return iterator, recorder.clock() - begin_ns

    def fetch(self, iterator: Iterator[Batch], waited_ns: int) -> Batch:
        """Return the next batch; the training has waited ``waited_ns`` for it before.

        Raises:
            StopIteration: the loader is empty.
        """
        recorder = self.recorder
        section, buffer = recorder.section(DATA_LOADING), recorder.buffer()
        begin_ns = recorder.clock()
        buffer.record_loader(self.counts.loader_id, begin_ns)
        section.__enter__()
        was_fetching, buffer.is_fetching = buffer.is_fetching, True
        try:
            batch = next(iterator)
        except StopIteration:
            discard(section)
            raise
        except BaseException:
            section.__exit__(None, None, None)
            raise
        finally:
            buffer.is_fetching = was_fetching
        section.__exit__(None, None, None)
        wait_ns = waited_ns + recorder.clock() - begin_ns
        self.counts.add(batch_size(batch), wait_ns, self.is_training())
        return batch


class ProfiledLoader(StandIn):
    """The user's loader, but each wait for a batch is recorded."""

    __slots__ = ("_profiler_timer", "_profiler_waited_ns")

    def __init__(self, loader: Any, timer: FetchTimer, waited_ns: int = 0) -> None:
        super().__init__(loader)
        object.__setattr__(self, "_profiler_timer", timer)
        object.__setattr__(self, "_profiler_waited_ns", waited_ns)

    def __iter__(self) -> Any:
        try:
            iterator, waited_ns = self._profiler_timer.create(self._profiler_wrapped)
        except BaseException as error:
            hide_our_frames(error)
            raise
        if iterator is self._profiler_wrapped:
            return self
        return stand_in(ProfiledIterator, iterator, self._profiler_timer, waited_ns)

    def _profiler_like(self, wrapped: Any) -> Any:
        return stand_in(type(self).__mro__[1], wrapped, self._profiler_timer)

    # A process that is not profiled gets the user's loader.
    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        again, *rest = self._profiler_timer.again
        return again, (self._profiler_wrapped, *rest)


class ProfiledIterator(ProfiledLoader):
    """One pass over a profiled loader, or a loader that is an iterator itself, such as a generator."""

    __slots__ = ()

    def __next__(self) -> Any:
        try:
            waited_ns = self._profiler_waited_ns
            if waited_ns:
                object.__setattr__(self, "_profiler_waited_ns", 0)
            return self._profiler_timer.fetch(self._profiler_wrapped, waited_ns)
        except BaseException as error:
            hide_our_frames(error)
            raise


def profiled(loader: Any, timer: FetchTimer) -> Any:
    """Return ``loader`` with its fetches timed; what cannot be iterated as it is."""
    if not (hasattr(loader, "__iter__") or hasattr(loader, "__next__") or hasattr(type(loader), "__getitem__")):
        return loader
    return stand_in(ProfiledIterator if hasattr(loader, "__next__") else ProfiledLoader, loader, timer)


def discard(section: Any) -> None:
    """End the span of ``section`` without counting it; its time goes to the enclosing section."""
    if isinstance(section, Section):
        section.discard()
    else:
        section.__exit__(None, None, None)


def batch_size(batch: object) -> int | None:
    """Return the length of the first dimension of the first tensor in ``batch``, or None."""
    try:
        for _ in range(4):  # levels of nesting; the first leaf counts
            kind = type(batch)  # cheaper than isinstance, and enough for most batches
            if kind is list or kind is tuple:
                batch = batch[0]  # type: ignore[index]
            elif kind is dict:
                batch = next(iter(batch.values()))  # type: ignore[attr-defined]
            elif (shape := getattr(batch, "shape", None)) is not None:
                return int(shape[0])
            elif isinstance(batch, Mapping):
                batch = next(iter(batch.values()), None)
            elif isinstance(batch, (list, tuple)):
                batch = batch[0]
            else:
                return None
        if hasattr(batch, "shape"):
            return int(batch.shape[0])
    except Exception:  # a batch is the user's own object and may do anything when accessed
        return None
    return None
