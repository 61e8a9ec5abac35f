"""Changes of how batches are made: arguments of the training's data loaders."""

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from training_profiler.instrumentation.patching import Patches
from training_profiler.recording.data_loader import MAP_STYLE, WHOLE_TENSORS, behind_subsets
from training_profiler.snapshot.program import LOADER, CallFacts
from training_profiler.snapshot.snapshot import LoaderStats
from training_profiler.tables.backends import CUDA
from training_profiler.trials.treatments.treatment import Edit, Treatment, TrialFacts

NO_LOADER: Final = "no DataLoader of torch"
NO_WORKERS: Final = "the loader has no workers"
IS_SET: Final = "is set already"
DEFAULT_PREFETCH: Final = 2  # batches a worker


@dataclass(frozen=True)
class LoaderTreatment(Treatment):
    """A change of the loaders that a pass with gradients begins on: validation keeps its own."""

    def reason_not(self, facts: TrialFacts) -> str | None:
        """Return why not."""
        return NO_LOADER if facts.loader is None else self.why_not(facts.loader, facts)

    def why_not(self, loader: LoaderStats, facts: TrialFacts) -> str | None:
        """Return why it does not apply to the loader with the most waiting."""
        return None

    def install(self, patches: Patches, torch: Any) -> None:
        """Change each loader before its first pass."""
        patches.replace(torch.utils.data.DataLoader, "__iter__", functools.partial(_changing, torch, self.change))

    def change(self, loader: Any) -> None:
        """Change a loader."""

    def edit(self, calls: Sequence[CallFacts]) -> list[Edit]:
        """Return the edit of each loader of the training."""
        return [Edit(call, (self.argument,)) for call in calls if call.kind == LOADER]


def _changing(torch: Any, change: Callable[[Any], None], original: Any) -> Any:
    @functools.wraps(original)
    def __iter__(self: Any) -> Any:  # noqa: N807
        if torch.is_grad_enabled():
            change(self)
        return original(self)

    return __iter__


@dataclass(frozen=True)
class Workers(LoaderTreatment):
    """More or fewer workers."""

    count: int

    @property
    def cycle(self) -> int:
        """The number of workers."""
        return max(1, self.count)

    def why_not(self, loader: LoaderStats, facts: TrialFacts) -> str | None:
        """Return why not: an iterable data set may yield everything once in each worker."""
        if loader.is_map_style is False:
            return "an iterable data set may repeat its data in each worker"
        if loader.num_workers == self.count:
            return IS_SET
        if facts.cores is not None and self.count > max(1.0, facts.cores):
            return f"only {facts.cores:g} CPUs"
        return None

    def change(self, loader: Any) -> None:
        """Set the number; a loader without workers has neither a prefetch factor nor a time to wait for them."""
        if loader._dataset_kind == MAP_STYLE and loader._iterator is None:
            vars(loader).update(
                num_workers=self.count,
                prefetch_factor=loader.prefetch_factor or DEFAULT_PREFETCH if self.count else None,
                timeout=loader.timeout if self.count else 0,
            )


@dataclass(frozen=True)
class KeepWorkers(LoaderTreatment):
    """Workers that live from one pass to the next."""

    def why_not(self, loader: LoaderStats, facts: TrialFacts) -> str | None:
        """Return why not."""
        if not loader.num_workers:
            return NO_WORKERS
        if loader.persistent_workers:
            return IS_SET
        if loader.is_remade:
            return "the program makes a new loader for each pass"
        return "only one pass over the data" if facts.passes == 1 else None

    def install(self, patches: Patches, torch: Any) -> None:
        """Keep the workers, and draw the number that starting new ones would have drawn."""
        super().install(patches, torch)
        iterators = torch.utils.data.dataloader._MultiProcessingDataLoaderIter
        patches.replace(iterators, "_reset", functools.partial(_drawing, torch))

    def change(self, loader: Any) -> None:
        """Keep its workers."""
        if loader._iterator is None:
            vars(loader).update(persistent_workers=True)

    def edit(self, calls: Sequence[CallFacts]) -> list[Edit]:
        """Return the edit of each loader; a number that starting workers draws has to be drawn by the program."""
        note = (
            "for the same losses, draw before each later pass what starting workers drew: "
            "torch.empty((), dtype=torch.int64).random_(generator=loader.generator)"
        )
        return [edit._replace(note=note) for edit in super().edit(calls)]


def _drawing(torch: Any, original: Any) -> Any:
    @functools.wraps(original)
    def _reset(self: Any, loader: Any, first_iter: bool = False) -> None:
        if not first_iter:
            torch.empty((), dtype=torch.int64).random_(generator=loader.generator)
        original(self, loader, first_iter)

    return _reset


@dataclass(frozen=True)
class Prefetch(LoaderTreatment):
    """More batches that wait to be used."""

    factor: int

    def why_not(self, loader: LoaderStats, facts: TrialFacts) -> str | None:
        """Return why not."""
        if not loader.num_workers:
            return NO_WORKERS
        return IS_SET if loader.prefetch_factor == self.factor else None

    def change(self, loader: Any) -> None:
        """Set the factor; without workers it has no effect."""
        vars(loader).update(prefetch_factor=self.factor)


@dataclass(frozen=True)
class PinnedMemory(LoaderTreatment):
    """Batches in pinned memory, which are copied to the device beside its work."""

    def reason_not(self, facts: TrialFacts) -> str | None:
        """Return why not."""
        return super().reason_not(facts) if facts.accelerator else "no accelerator"

    def why_not(self, loader: LoaderStats, facts: TrialFacts) -> str | None:
        """Return why not."""
        return IS_SET if loader.pin_memory else None

    def install(self, patches: Patches, torch: Any) -> None:
        """Pin the batches, and let copies of pinned tensors to a device not wait. Copies back still wait."""
        super().install(patches, torch)
        for name in ("to", CUDA.kind):
            patches.replace(torch.Tensor, name, _not_waiting)

    def change(self, loader: Any) -> None:
        """Pin its batches."""
        vars(loader).update(pin_memory=True)

    def edit(self, calls: Sequence[CallFacts]) -> list[Edit]:
        """Return the edit of each loader; the copies are elsewhere."""
        return [edit._replace(note="copy batches by .to(device, non_blocking=True)") for edit in super().edit(calls)]


def _not_waiting(original: Any) -> Any:
    @functools.wraps(original)
    def copy(self: Any, *args: Any, **kwargs: Any) -> Any:
        is_given = "non_blocking" in kwargs or any(isinstance(value, bool) for value in args)
        if not is_given and self.device.type == "cpu" and self.is_pinned():
            kwargs["non_blocking"] = True
        return original(self, *args, **kwargs)

    return copy


@dataclass(frozen=True)
class WholeBatches(LoaderTreatment):
    """Batches of tensors by one index operation, instead of one for each sample."""

    def why_not(self, loader: LoaderStats, facts: TrialFacts) -> str | None:
        """Return why not."""
        if loader.fetches_batches:
            return "torch uses the data set's __getitems__ already"
        return (
            None if loader.data_set == WHOLE_TENSORS else f"{loader.data_set or 'the data set'} returns single samples"
        )

    def change(self, loader: Any) -> None:
        """Ask for all samples of a batch at once, where torch's own functions would put them together."""
        from torch.utils.data import TensorDataset, _utils, default_collate

        data = behind_subsets(loader.dataset)
        if type(data) is TensorDataset and loader.collate_fn is default_collate and loader.batch_sampler:
            vars(loader).update(
                sampler=loader.batch_sampler,
                batch_sampler=None,
                batch_size=None,
                drop_last=False,
                collate_fn=_utils.collate.default_convert,
            )

    def edit(self, calls: Sequence[CallFacts]) -> list[Edit]:
        """Return what to pass; the arguments that go depend on those that are there."""
        note = (
            "pass sampler=BatchSampler(sampler, batch_size, drop_last) and batch_size=None, no shuffle; sampler is "
            "RandomSampler(dataset) where it shuffles now, else SequentialSampler(dataset)"
        )
        return [Edit(call, note=note) for call in calls if call.kind == LOADER]
