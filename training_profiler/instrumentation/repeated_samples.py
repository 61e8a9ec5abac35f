"""Finds samples that several workers yield, or ranks train on, by a few fingerprints of those that each has seen."""

import sys
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from hashlib import blake2b
from typing import Any, Final

from training_profiler.model.loader_workers import MOST_PRINTS, PRINTS_END, SamplePrints

COLUMNS: Final = 64  # numbers of a sample that are looked at, at least
FIRST_BATCHES: Final = 16  # that are looked at in any case
MOST_COST: Final = 0.003  # of the time of a worker, later
TRAINED_NEEDED: Final = 8  # batches of a rank: the first ones alone may be alike
DEPTH: Final = 3  # of batches within batches


class PassPrints:
    """The smallest fingerprints of the samples in a worker's first pass over a stream; no sample is kept.

    Each process chooses the same samples by that, in whatever order it yields them.
    """

    def __init__(
        self, clock: Callable[[], int] = time.perf_counter_ns, cpu_clock: Callable[[], int] = time.thread_time_ns
    ) -> None:
        self.spent_ns = 0  # of CPU time
        self._clock, self._cpu_clock = clock, cpu_clock
        self._began_ns = 0
        self._fetcher: Callable[[], Any] = lambda: None  # of the pass
        self._is_on, self._is_over = True, False
        self._places: dict[int, int] = {}  # of each, among all samples looked at
        self._again: set[int] = set()
        self.batches = self._samples = 0
        self._largest = PRINTS_END

    def add(self, fetcher: Any, batch: object) -> None:
        """Add a batch; those of a later pass, and those of objects that are not tensors on the host, do not count."""
        self._is_over = False
        if not self._began_ns:
            self._began_ns, self._fetcher = self._clock(), weakref.ref(fetcher)
        may_spend = self.batches < FIRST_BATCHES or self.spent_ns <= MOST_COST * (self._clock() - self._began_ns)
        self._is_on = self._is_on and may_spend and self._fetcher() is fetcher
        if self._is_on:
            begin_ns, prints = self._cpu_clock(), []
            with suppress(Exception):  # tensors and classes of the user's
                prints = sample_prints(batch)
            self.see(prints)
            self.spent_ns += self._cpu_clock() - begin_ns

    def see(self, batch: Iterable[int]) -> None:
        """Add the fingerprints of a batch."""
        self.batches += 1
        for each in batch:
            self._samples += 1
            if each in self._places:
                self._again.add(each)
            elif each < self._largest:
                self._places[each] = self._samples
                if len(self._places) > MOST_PRINTS:
                    del self._places[max(self._places)]
                    self._largest = max(self._places)

    def end(self) -> None:
        """Note that the latest pass has ended."""
        self._is_over = True

    def record(self) -> SamplePrints | None:
        """Return the samples so far; None without a batch or an end."""
        if not self.batches and not self._is_over:
            return None
        places = tuple(sorted(self._places.copy().items()))  # the worker's main thread adds to it
        return SamplePrints(places, self._samples, len(self._again.intersection(self._places)), self._is_over)


class TrainedSamples:
    """Fingerprints of the samples that this rank trains on in early batches of one pass over a loader.

    They count where gradients are averaged over all ranks, and the model gets a tensor of a batch's shape: ranks that
    share the work on a batch may all fetch it. On the host, the tensor itself counts: it may be one for all steps.
    """

    def __init__(self) -> None:
        self._iterator: Callable[[], Any] = lambda: None  # of the pass
        self._prints = PassPrints()
        self._fetched: tuple[Any, list[int], set[Any]] = (None, [], set())  # and not used so far

    def fetched(self, iterator: Any, batch: object) -> None:
        """Look at a batch of a loader."""
        distributed = sys.modules["torch"].distributed
        if distributed.is_available() and distributed.is_initialized() and distributed.get_world_size() > 1:
            shapes = {each.shape for each in _parts(batch) if not isinstance(each, str)}
            self._fetched = weakref.ref(iterator), sample_prints(batch), shapes

    def call_begins(self, module: Any, inputs: Any, has_grad: bool) -> None:
        """Add the latest batch if the call trains on it."""
        (iterator, prints, shapes), self._fetched = self._fetched, (None, [], set())
        used = [each for each in _parts(inputs) if not isinstance(each, str) and each.shape in shapes]
        if not has_grad or not used or not _averages_over_all_ranks(module):
            return
        if self._iterator() is not iterator():
            if self._prints.batches >= TRAINED_NEEDED:
                return
            self._iterator, self._prints = iterator, PassPrints()
        self._prints.see(sample_prints(used) or prints)

    def record(self) -> SamplePrints | None:
        """Return the samples so far; None where they are too few, or where gradients are not averaged."""
        return self._prints.record() if self._prints.batches >= TRAINED_NEEDED else None


def _averages_over_all_ranks(module: Any) -> bool:
    """Return whether all ranks are replicas of a module of torch's DDP or FSDP, which no other dimension divides."""
    size = sys.modules["torch"].distributed.get_world_size()
    kinds = {kind.__name__ for kind in type(module).__mro__ if kind.__module__.startswith("torch.")}
    if kinds & {"DistributedDataParallel", "FullyShardedDataParallel"}:
        return bool(module.process_group.size() == size)
    mesh = getattr(next(module.parameters(), None), "device_mesh", None) if "FSDPModule" in kinds else None
    return mesh is not None and (mesh.ndim, mesh.size()) == (1, size)


def sample_prints(batch: object) -> list[int]:
    """Return the fingerprints of the samples of a batch, equal in all processes; none where it has none on the host.

    If its tensors have no length in common, it is taken for one sample.
    """
    torch, parts = sys.modules["torch"], list(_parts(batch))
    texts = [each.encode() for each in parts if isinstance(each, str)]
    tensors = [each for each in parts if not isinstance(each, str)]
    if not parts or any(type(each) is not torch.Tensor or not each.is_cpu or each.requires_grad for each in tensors):
        return []
    lengths = {len(each) if each.ndim else 0 for each in tensors} or {0}
    (count,) = lengths if len(lengths) == 1 and 0 not in lengths else (1,)
    columns: list[Any] = [_spread(tensor.reshape(count, -1)) for tensor in tensors]
    if len(texts) % count == 0:
        columns += [texts[at : at + count] for at in range(0, len(texts), count)]
    prints = [blake2b(digest_size=8) for _ in range(count)]
    for column in columns:
        for print_, part in zip(prints, column, strict=True):
            print_.update(part)
    return [int.from_bytes(each.digest()) % PRINTS_END for each in prints]


def _parts(value: object, depth: int = DEPTH) -> Iterator[Any]:
    """Yield tensors, arrays as tensors, and texts."""
    torch, numpy = sys.modules["torch"], sys.modules.get("numpy")
    if isinstance(value, (str, torch.Tensor)):
        yield value
    elif numpy is not None and isinstance(value, numpy.ndarray):
        yield torch.from_numpy(value)
    elif depth and isinstance(value, (Mapping, list, tuple)):
        for each in value.values() if isinstance(value, Mapping) else value:
            yield from _parts(each, depth - 1)


def _spread(rows: Any) -> Any:
    """Return a copy of the bytes of evenly spread columns: an array with a row for each sample."""
    torch = sys.modules["torch"]
    stride = max(1, rows.shape[1] // COLUMNS) | 1  # odd: widths of images are even
    # A tensor whose memory an array shares could not be resized any more.
    return rows[:, ::stride].clone(memory_format=torch.contiguous_format).view(torch.uint8).numpy()
