"""Changes of how batches are made: arguments of the loaders that a pass with gradients begins on."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

from training_profiler.base.backends import CUDA
from training_profiler.instrumentation.patching import Patches
from training_profiler.model.loader_workers import WHOLE_TENSORS
from training_profiler.model.program import LOADER
from training_profiler.model.snapshot import LoaderStats
from training_profiler.recording.data_loader import MAP_STYLE, behind_subsets
from training_profiler.trials.treatment import (
    IS_SET,
    Edit,
    Install,
    Treatment,
    TrialFacts,
    argument_edits,
    around,
    change_of,
)

NO_LOADER: Final = "no DataLoader of torch"
NO_WORKERS: Final = "the loader has no workers"
DEFAULT_PREFETCH: Final = 2  # batches a worker
DRAW: Final = (
    "for the same losses, draw before each later pass what starting workers drew: "
    "torch.empty((), dtype=torch.int64).random_(generator=loader.generator)"
)
BATCHED: Final = (
    "pass sampler=BatchSampler(sampler, batch_size, drop_last) and batch_size=None, no shuffle; sampler is "
    "RandomSampler(dataset) where it shuffles now, else SequentialSampler(dataset)"
)


def _of_loaders(
    name: str,
    why_not: Callable[[LoaderStats, TrialFacts], str | None],
    change: Callable[[Any], None],
    note: str = "",
    also: Install | None = None,
    label: str = "",
    **parts: Any,
) -> Treatment:
    """Return a change of each loader before its first pass with gradients: validation keeps its own.

    Args:
        name: of the treatment.
        why_not: says why it does not apply to the loader with the most waiting.
        change: changes a loader.
        note: what the edit leaves to the reader.
        also: what else is replaced.
        label: of the treatment; by default its argument.
        parts: of the treatment.
    """

    def install(patches: Patches, torch: Any) -> None:
        def begin_pass(original: Any, loader: Any) -> Any:
            if torch.is_grad_enabled():
                change(loader)
            return original(loader)

        patches.replace(torch.utils.data.DataLoader, "__iter__", around(begin_pass))
        if also is not None:
            also(patches, torch)

    return change_of(
        name,
        label or f"DataLoader({name if '=' in name else name + '=True'})",
        install,
        reason_not=lambda facts: NO_LOADER if facts.loader is None else why_not(facts.loader, facts),
        **{"edit": argument_edits(LOADER, name, note), **parts},
    )


def _workers(count: int) -> Treatment:
    def why_not(loader: LoaderStats, facts: TrialFacts) -> str | None:
        if loader.is_map_style is False:
            return "an iterable data set may repeat its data in each worker"
        return IS_SET if loader.num_workers == count else facts.too_few_cores(count)

    def change(loader: Any) -> None:
        if loader._dataset_kind == MAP_STYLE and loader._iterator is None:
            vars(loader).update(
                num_workers=count,  # without any, a loader has neither a prefetch factor nor a time to wait for them
                prefetch_factor=loader.prefetch_factor or DEFAULT_PREFETCH if count else None,
                timeout=loader.timeout if count else 0,
            )

    return _of_loaders(f"num_workers={count}", why_not, change, cycle=max(1, count))


def _why_not_keep(loader: LoaderStats, facts: TrialFacts) -> str | None:
    if not loader.num_workers:
        return NO_WORKERS
    if loader.persistent_workers:
        return IS_SET
    if loader.is_remade:
        return "the program makes a new loader for each pass"
    return "only one pass over the data" if facts.passes == 1 else None


def _keep(loader: Any) -> None:
    if loader._iterator is None:
        vars(loader).update(persistent_workers=True)


def _draw(patches: Patches, torch: Any) -> None:
    """Draw the number that starting new workers would have drawn."""

    def reset(original: Any, iterator: Any, loader: Any, first_iter: bool = False) -> None:
        if not first_iter:
            torch.empty((), dtype=torch.int64).random_(generator=loader.generator)
        original(iterator, loader, first_iter)

    patches.replace(torch.utils.data.dataloader._MultiProcessingDataLoaderIter, "_reset", around(reset))


def _prefetch(factor: int) -> Treatment:
    def why_not(loader: LoaderStats, facts: TrialFacts) -> str | None:
        if not loader.num_workers:
            return NO_WORKERS
        return IS_SET if loader.prefetch_factor == factor else None

    return _of_loaders(f"prefetch_factor={factor}", why_not, lambda loader: vars(loader).update(prefetch_factor=factor))


def _pinned() -> Treatment:
    def not_waiting(original: Any, tensor: Any, *args: Any, **kwargs: Any) -> Any:
        is_given = "non_blocking" in kwargs or any(isinstance(value, bool) for value in args)
        if not is_given and tensor.device.type == "cpu" and tensor.is_pinned():  # copies back still wait
            kwargs["non_blocking"] = True
        return original(tensor, *args, **kwargs)

    def copy_without_waiting(patches: Patches, torch: Any) -> None:
        for name in ("to", CUDA.kind):
            patches.replace(torch.Tensor, name, around(not_waiting))

    pinned = _of_loaders(
        "pin_memory",
        lambda loader, facts: IS_SET if loader.pin_memory else None,
        lambda loader: vars(loader).update(pin_memory=True),
        "copy batches by .to(device, non_blocking=True)",
        copy_without_waiting,
    )
    return replace(pinned, reason_not=lambda facts: pinned.reason_not(facts) if facts.accelerator else "no accelerator")


def _why_not_whole(loader: LoaderStats, facts: TrialFacts) -> str | None:
    if loader.fetches_batches:
        return "torch uses the data set's __getitems__ already"
    return None if loader.data_set == WHOLE_TENSORS else f"{loader.data_set or 'the data set'} returns single samples"


def _fetch_whole(loader: Any) -> None:
    """Ask for all samples of a batch by one index operation, where torch's own functions would put them together."""
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


TREATMENTS: Final = (
    *map(_workers, (0, 1, 2, 4, 8, 16)),
    _of_loaders("persistent_workers", _why_not_keep, _keep, DRAW, _draw),
    *map(_prefetch, (4, 8)),
    _pinned(),
    _of_loaders(
        "batched",
        _why_not_whole,
        _fetch_whole,
        label="DataLoader(sampler=BatchSampler(...))",
        # The arguments that go depend on those that are there.
        edit=lambda calls: [Edit(call, note=BATCHED) for call in calls if call.kind == LOADER],
    ),
)
