"""Data loaders, which iterators belong to which, and their passes: what of each is known, and which are under way."""

import sys
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from enum import Enum
from types import FrameType
from typing import Any, Final

from training_profiler.base.units import NS_PER_S
from training_profiler.model.loader_workers import NONE_MADE, TRAIN, VAL, MadeBatches
from training_profiler.model.program import CallSite, FetchedBefore, PassesBefore
from training_profiler.recording.data_loader import LoaderCounts, LoaderRegistry, batch_size, loader_arguments
from training_profiler.recording.event_codes import Fields, field
from training_profiler.recording.object_identity import ObjectIdentity

MAX_PASSES: Final = 256  # under way at once; with more, the oldest are dropped
# The CPU time of a batch is that of all threads, for which two system calls are needed: several microseconds in a step
# of 0.25 ms, where they also evict caches. So it is measured for every third of the first batches of a loader, and
# later for every so many that these are some time apart. That is a prime, because a data set may do something every so
# many batches.
FIRST_MADE: Final = 30
MADE_EVERY: Final = 3
LATER_MADE_EVERY: Final = (23, 47, 97, 197, 397)
MADE_APART_NS: Final = 50_000_000
NEVER: Final = 1 << 62
MAX_LOADERS: Final = 32  # further ones share one entry
SKIPPED_FROM: Final = 8  # batches before the training: trainers fetch some ahead
FOLLOWED: Final = 64  # of these, the latest of a pass
DISTRIBUTED_SAMPLER: Final = ("torch.utils.data.distributed", "DistributedSampler")
OTHER_LOADERS: Final = "(other loaders)"


class PassPhase(Enum):
    """The use of a pass's batches."""

    UNKNOWN = None
    TRAINING = TRAIN
    EVALUATION = VAL


class LoaderPass(Fields):
    """One pass of one iterator over its loader. Times in ns; 0 for never."""

    iterator_id: int = field(0)
    kind: PassPhase = field(1)
    fetches: int = field(2)
    loader_id: int = field(4)  # of its counts; 0 for none
    cycle: int = field(5)  # number of updates before its last fetch
    cycle_begin_ns: int = field(6)  # of the first fetch after that update
    measured_at: int = field(3)  # batches before the next one whose CPU time is measured

    def __init__(self, iterator: Any) -> None:
        self.iterator, self.iterator_id = weakref.ref(iterator), id(iterator)
        self.kind = PassPhase.UNKNOWN
        self.fetches = 0
        self.trained_before = 0  # backward passes and updates before its first fetch
        self.begin_ns = 0  # of the first fetch
        self.end_ns = 0  # of the last fetch while its phase is unknown or evaluation
        self.cycle = -1
        self.cycle_begin_ns = 0
        self.is_evaluated = False  # calls without gradients came between its last batch and the next fetch
        self.has_ended = False  # its loader was found empty
        self.is_over = False  # and none of its batches was used during the pass
        self.memory: list[Callable[[], Any]] = []  # of its latest batches before the training
        self.place = ""  # the user's line that took one of these
        self.counts: LoaderCounts | None = None  # of its loader; None if unknown, or if the loader counts itself
        self.loader_id = 0
        self.samples: int | None = None  # in its batches; None if not counted
        self.misses = 0  # training events during a pass that was taken for evaluation
        self.measured_at = NEVER
        self.made = NONE_MADE  # those batches whose CPU time was measured
        self.measured_before: tuple[int, int] | None = None  # the latest of them: batches before it, and its time
        self.measured_often = FIRST_MADE  # batches of which every third is measured

    def use_counts(self, counts: LoaderCounts) -> None:
        """Set the loader of the pass."""
        self.counts, self.loader_id, self.samples = counts, counts.loader_id, 0
        if counts.arguments is not None and counts.arguments.num_workers == 0:  # the training thread makes them
            self.measured_at = 1  # not the first one, which also starts the pass
            if sum(counts.of(phase).made.number for phase in (TRAIN, VAL)) >= FIRST_MADE // MADE_EVERY:
                self.measured_often, self.measured_at = 0, LATER_MADE_EVERY[0]
        counts.passes.append(self)

    @property
    def is_first_training_of_loader(self) -> bool:
        """Whether all training batches of its loader are its own; False if the loader is not known."""
        return self.counts is not None and self.counts.of(TRAIN).batches <= self.fetches

    @property
    def phase(self) -> str | None:
        """``TRAIN`` or ``VAL``; None while unknown."""
        phase: str | None = self.kind.value
        return phase

    def add_batch(self, batch: object) -> None:
        """Add the samples of a batch; if they cannot be counted, no more are."""
        count = batch_size(batch)
        self.samples = None if count is None or self.samples is None else self.samples + count

    def add_made(self, cpu_ns: int, now_ns: int) -> None:
        """Add a batch that was made on the training thread by ``now_ns``, and choose the next one to be measured."""
        before, self.measured_before = self.measured_before, (self.fetches, now_ns)
        self.made = MadeBatches(self.made.number + 1, self.made.cpu_ns + cpu_ns)
        every = LATER_MADE_EVERY[0]
        if self.fetches < self.measured_often:
            every = MADE_EVERY
        elif before is not None and self.fetches > before[0]:
            step_ns = (now_ns - before[1]) / (self.fetches - before[0])
            enough = (every for every in LATER_MADE_EVERY if every * step_ns >= MADE_APART_NS)
            every = next(enough, LATER_MADE_EVERY[-1])
        self.measured_at = self.fetches + every

    @property
    def is_cut(self) -> bool:
        """Whether the program left it after its first batch: its iterator is gone, and its loader was not empty."""
        return self.fetches == 1 and not self.has_ended and self.iterator() is None


class Passes(Fields):
    """The passes under way. Iterators are held weakly, because workers end with them."""

    latest: LoaderPass | None = field(0)

    def __init__(self) -> None:
        self.unknown: list[LoaderPass] = []  # with at least one batch fetched
        self.latest = None
        self._loader_of: Callable[[Any], LoaderCounts | None] = lambda iterator: None
        self.place_of: Callable[[FrameType], str] = lambda frame: ""
        self._by_id: dict[int, LoaderPass] = {}

    def use_loaders(
        self, loader_of: Callable[[Any], LoaderCounts | None], place_of: Callable[[FrameType], str] = lambda frame: ""
    ) -> None:
        """Find the counts of an iterator's loader by ``loader_of``, and the user's line of a stack by ``place_of``."""
        self._loader_of, self.place_of = loader_of, place_of

    def of(self, iterator: Any, is_first: bool) -> LoaderPass:
        """Return the pass of ``iterator``; a new one if the iterator is new or starts again."""
        latest = self.latest
        if latest is not None and not is_first and latest.iterator() is iterator:
            return latest
        loader_pass = self._by_id.get(id(iterator))
        if loader_pass is None or is_first or loader_pass.iterator() is not iterator:
            loader_pass = self._begin(iterator)
        self.latest = loader_pass
        return loader_pass

    def _begin(self, iterator: Any) -> LoaderPass:
        ended = [before] if (before := self._by_id.pop(id(iterator), None)) is not None else []
        while len(self._by_id) >= MAX_PASSES:
            ended.append(self._by_id.pop(next(iter(self._by_id))))
        for before in ended:
            if before.counts is not None:
                before.counts.end_pass(before)
        loader_pass = self._by_id[id(iterator)] = LoaderPass(iterator)
        if (counts := self._loader_of(iterator)) is not None:
            loader_pass.use_counts(counts)
        return loader_pass

    def is_alone(self, loader_pass: LoaderPass) -> bool:
        """Return whether no other pass that feeds the training is under way."""
        return not any(
            candidate is not loader_pass
            and candidate.kind is PassPhase.TRAINING
            and not candidate.has_ended
            and candidate.iterator() is not None
            for candidate in self._by_id.values()
        )


def _memory(batch: object, depth: int = 3) -> Iterator[Callable[[], Any]]:
    """Yield weak references to the memory of a batch's tensors, which their parts keep, too."""
    if depth and isinstance(batch, (Mapping, list, tuple)):
        for each in batch.values() if isinstance(batch, Mapping) else batch:
            yield from _memory(each, depth - 1)
    elif hasattr(batch, "untyped_storage"):
        with sys.modules["torch"]._C.DisableTorchFunction():  # no mode of the program sees it
            memory = weakref.ref(batch.untyped_storage())
        yield memory


class FirstEvaluations:
    """Evaluations before the first training event, by their loaders, and which loaders are evaluated later.

    And batches of which nothing was computed by then.

    Features made ahead of time look like a first validation. A loader that is made again for each evaluation may not be
    recognized, so what the same line makes later counts as it.
    """

    def __init__(self, passes: Passes) -> None:
        self._has_trained, self._passes = False, passes
        # A loader is known by its id, and by the class of its data set with the line that made it. Before: and its ns.
        self._before: list[tuple[set[int | tuple[str, str]], int]] = []
        self._later: set[int | tuple[str, str]] = set()
        self._latest: set[int | tuple[str, str]] = set()  # the loader under way, until the training begins
        self._fetched: FetchedBefore | None = None

    def fetched(self, loader_pass: LoaderPass, batch: object) -> None:
        """Handle a batch of which nothing has been computed so far."""
        if not self._has_trained:
            with suppress(Exception):  # classes of the user's
                loader_pass.memory += [*_memory(batch)][:1]
            del loader_pass.memory[:-FOLLOWED]
            if loader_pass.fetches == SKIPPED_FROM:
                loader_pass.place = self._passes.place_of(sys._getframe(1))

    def training_begins(self, unknown: Sequence[LoaderPass], fed_by: LoaderPass | None) -> None:
        """Handle a training event that ``fed_by`` feeds; the phase of passes was ``unknown`` until then."""
        for each in () if self._has_trained else unknown:
            kept, is_fed = sum(memory() is not None for memory in each.memory), each is fed_by
            batches = each.fetches - is_fed * max(1, kept)  # the first one trained on, and those fetched ahead
            is_over = is_fed or each.has_ended or each.iterator() is None
            if is_over and batches >= SKIPPED_FROM and 2 * kept < len(each.memory):
                spent_s = (each.end_ns - each.begin_ns) / NS_PER_S * batches / each.fetches
                facts = FetchedBefore(batches, spent_s, each.place, is_fed)
                self._fetched = max(self._fetched or facts, facts, key=lambda found: found.seconds)
        self._has_trained = True

    def passes(self, loader_pass: LoaderPass) -> None:
        """Handle a pass that turns out to be an evaluation."""
        loader, counts = loader_pass.loader_id, loader_pass.counts
        arguments = None if counts is None else counts.arguments
        made = ("", "") if arguments is None else (arguments.data_set, arguments.made_at)
        if self._has_trained:
            self._later.update((loader, made))
        else:
            self._latest = {loader, made} if loader else set()

    def ended(self, ns: int) -> None:
        """Handle the end of an evaluation that took ``ns``."""
        if self._latest:
            self._before.append((self._latest, ns))
            self._latest = set()

    def facts(self) -> dict[str, PassesBefore | FetchedBefore | None]:
        """Return ``ProgramFacts`` about evaluations of loaders that are not evaluated later, and unused batches."""
        found = [ns for loader, ns in self._before[:] if self._later.isdisjoint(loader)]
        passes = PassesBefore(len(found), sum(found) / NS_PER_S) if found else None
        return {"passes_before": passes, "fetched_before": self._fetched}


class _KnownLoader:
    """A loader found before: the sampler and the data set of its latest iterator."""

    def __init__(self, counts: LoaderCounts, iterator: Any, site: CallSite | None) -> None:
        self.counts, self.signature = counts, _signature(iterator)
        self.order, self.same_order = _order(iterator), -1  # so many passes had this order, the first one not counted
        self.follow(iterator, site)

    def follow(self, iterator: Any, site: CallSite | None) -> None:
        self.order = self.order if self.order == _order(iterator) else None
        self.same_order = 0 if self.order is None else self.same_order + 1
        self.sampler, self.data = ObjectIdentity(iterator._index_sampler), ObjectIdentity(iterator._dataset)
        self.iterator, self.site, self.mark = ObjectIdentity(iterator), site, _mark(iterator)

    def is_over(self, site: CallSite | None) -> bool:
        """Return whether it is gone, or a library that keeps it makes another one at the line ``site``."""
        return self.sampler.is_gone or bool(site and site.inside and site == self.site and self.iterator.is_gone)


class KnownLoaders:
    """The loaders found by the patches, in the order of their first batches.

    A loader is recognized by its index sampler, which it keeps for all passes. A program may also make a new loader for
    each epoch. It continues an earlier loader that is over and had the same signature and data set. The data set may
    differ if the earlier one is gone too. ``site_of`` returns the user's line that made the loader of a sampler,
    ``names_of`` the names of the loader of an iterator, the best first.
    """

    def __init__(
        self,
        registry: LoaderRegistry,
        site_of: Callable[[Any], CallSite | None] = lambda sampler: None,
        names_of: Callable[[Any], Sequence[str]] = lambda iterator: (),
    ) -> None:
        self._registry = registry
        self._site_of, self._names_of = site_of, names_of
        self._known: list[_KnownLoader] = []
        self._others: LoaderCounts | None = None

    def counts_of(self, iterator: Any) -> LoaderCounts | None:
        """Return the counts of the loader of a ``DataLoader`` iterator; None if it lacks the expected attributes."""
        try:
            site, is_remade = self._site_of(iterator._index_sampler), False
            known = self._find(iterator, site)
            if known is not None:
                is_remade = known.sampler.is_gone
                known.follow(iterator, site)
            elif len(self._known) < MAX_LOADERS:
                known = _KnownLoader(self._registry.add_inferred(self._names_of(iterator)), iterator, site)
                self._known.append(known)
            if known is not None:
                arguments, made_at = loader_arguments(iterator, "_"), "" if site is None else site.place
                known.counts.use_arguments(
                    arguments and arguments._replace(is_remade=is_remade, made_at=made_at, same_order=known.same_order)
                )
                return known.counts
        except Exception:  # private attributes of torch, and classes of the user's
            return None
        if self._others is None:
            self._others = self._registry.add_inferred((OTHER_LOADERS,))
        return self._others

    def _find(self, iterator: Any, site: CallSite | None) -> _KnownLoader | None:
        for known in self._known:
            if known.sampler.matches(iterator._index_sampler):
                return known
        signature, data, mark = _signature(iterator), iterator._dataset, _mark(iterator)
        over = [known for known in self._known if known.is_over(site) and known.signature == signature]
        of_same_data = [known for known in over if known.data.matches(data) or None is not mark == known.mark]
        return next(iter(of_same_data or [known for known in over if known.data.is_gone]), None)


def _mark(iterator: Any) -> str | None:
    """Return what data sets of Hugging Face's are known by, which its trainer copies for each evaluation."""
    return mark if isinstance(mark := getattr(iterator._dataset, "_fingerprint", None), str) else None


def _signature(iterator: Any) -> tuple[Any, ...]:
    """Return what loaders made by the same line of code have in common."""
    sampler = iterator._index_sampler
    inner, size = getattr(sampler, "sampler", None), getattr(sampler, "batch_size", None)
    return type(iterator._dataset), type(sampler), type(inner), size, getattr(sampler, "drop_last", None)


def _order(iterator: Any) -> tuple[int, int] | None:
    """Return what the order of a ``DistributedSampler`` of torch's depends on; None where that is not known."""
    sampler = getattr(iterator._index_sampler, "sampler", None)
    kind = type(sampler)
    if (kind.__module__, kind.__name__) != DISTRIBUTED_SAMPLER or sampler is None or not sampler.shuffle:
        return None
    return sampler.seed, sampler.epoch
