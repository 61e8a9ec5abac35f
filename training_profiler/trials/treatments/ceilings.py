"""Ceilings: what cannot be had by an edit, but bounds what an edit can bring."""

import functools
import os
import sys
from collections import Counter
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, Final

from training_profiler.instrumentation.patching import Patches, after_import
from training_profiler.tables.sections import CHECKPOINTING, VALIDATION_EPOCH
from training_profiler.tables.trackers import MLFLOW, TENSORBOARD, WANDB
from training_profiler.trials.treatments.treatment import Treatment, TrialFacts

FETCHED: Final = 4  # batches of a data set that are made before the last of them is used again and again


@dataclass(frozen=True)
class OneBatch(Treatment):
    """Each pass over the data yields one of its first batches again and again. It has as many batches as before."""

    def reason_not(self, facts: TrialFacts) -> str | None:
        """Return why not."""
        return "no DataLoader of torch" if facts.loader is None else None

    def install(self, patches: Patches, torch: Any) -> None:
        """Replace the fetches of passes that begin with gradients."""
        iterators = torch.utils.data.dataloader._BaseDataLoaderIter
        # By the id of the data set, which outlives its passes.
        kept: dict[int, Any] = {}
        made: Counter[int] = Counter()

        def make(original: Any) -> Any:
            @functools.wraps(original)
            def __next__(self: Any) -> Any:  # noqa: N807
                data_set = id(self._dataset)
                if made[data_set] < FETCHED or not torch.is_grad_enabled():
                    batch = original(self)
                    if torch.is_grad_enabled():
                        kept[data_set] = batch
                        made[data_set] += 1
                    return batch
                if self._num_yielded >= _length(self._index_sampler):
                    raise StopIteration
                vars(self).update(_num_yielded=self._num_yielded + 1)
                return kept[data_set]

            return __next__

        patches.replace(iterators, "__next__", make)


def _length(sampler: Any) -> float:
    try:
        return len(sampler)
    except (TypeError, NotImplementedError):  # of an iterable data set: it ends with the trial
        return float("inf")


@dataclass(frozen=True)
class NoCheckpoints(Treatment):
    """``torch.save`` and safetensors write a small file instead; loading it again gives what was saved."""

    def reason_not(self, facts: TrialFacts) -> str | None:
        """Return why not."""
        return None if CHECKPOINTING in facts.sections else "no checkpoint was saved"

    def install(self, patches: Patches, torch: Any) -> None:
        """Replace the functions, those of safetensors once it is imported."""
        saved: dict[str, Any] = {}

        def make_save(original: Any) -> Any:
            @functools.wraps(original)
            def save(obj: Any, f: Any, *args: Any, **kwargs: Any) -> Any:
                if isinstance(f, (str, os.PathLike)):
                    saved[os.path.abspath(f)] = obj
                return original({}, f, *args, **kwargs)

            return save

        def make_load(original: Any) -> Any:
            @functools.wraps(original)
            def load(f: Any, *args: Any, **kwargs: Any) -> Any:
                path = os.path.abspath(f) if isinstance(f, (str, os.PathLike)) else ""
                return saved[path] if path in saved else original(f, *args, **kwargs)

            return load

        def make_save_file(original: Any) -> Any:
            @functools.wraps(original)
            def save_file(tensors: Any, *args: Any, **kwargs: Any) -> Any:
                return original({}, *args, **kwargs)

            return save_file

        for owner in (torch, torch.serialization):
            patches.replace(owner, "save", make_save)
            patches.replace(owner, "load", make_load)
        _once_imported(
            patches, "safetensors.torch", lambda module: patches.replace(module, "save_file", make_save_file)
        )


@dataclass(frozen=True)
class OneBatchOfValidation(Treatment):
    """Each pass without gradients that begins after a gradient was computed ends after its first batch."""

    def reason_not(self, facts: TrialFacts) -> str | None:
        """Return why not."""
        if VALIDATION_EPOCH not in facts.sections:
            return "no validation was seen"
        return None if facts.validates_by_loader else "its data does not come from a DataLoader of torch"

    def install(self, patches: Patches, torch: Any) -> None:
        """Replace the fetches of these passes."""
        has_trained: list[bool] = []

        def make_backward(original: Any) -> Any:
            @functools.wraps(original)
            def backward(*args: Any, **kwargs: Any) -> Any:
                has_trained[:] = [True]
                return original(*args, **kwargs)

            return backward

        def make_next(original: Any) -> Any:
            @functools.wraps(original)
            def __next__(self: Any) -> Any:  # noqa: N807
                if has_trained and self._num_yielded and not torch.is_grad_enabled():
                    raise StopIteration
                return original(self)

            return __next__

        patches.replace(torch.autograd, "backward", make_backward)
        patches.replace(torch.utils.data.dataloader._BaseDataLoaderIter, "__next__", make_next)


LOGS: Final = {
    "torch.utils.tensorboard.writer": ("SummaryWriter", ("add_scalar", "add_scalars")),
    "wandb.sdk.wandb_run": ("Run", ("log",)),
    "mlflow.tracking.fluent": ("", ("log_metric", "log_metrics")),  # where mlflow takes them from
}


@dataclass(frozen=True)
class NoScalars(Treatment):
    """Calls that log numbers to a tracker do nothing."""

    def reason_not(self, facts: TrialFacts) -> str | None:
        """Return why not."""
        is_any = any(find_spec(tracker.needs) for tracker in (TENSORBOARD, WANDB, MLFLOW) if tracker.needs)
        return None if is_any else "no tracker is installed"

    def install(self, patches: Patches, torch: Any) -> None:
        """Replace the functions once their module is imported."""
        for name, (owner, functions) in LOGS.items():
            _once_imported(patches, name, functools.partial(_silence, patches, owner, functions))


def _silence(patches: Patches, owner: str, functions: tuple[str, ...], module: Any) -> None:
    for function in functions:
        patches.replace(getattr(module, owner) if owner else module, function, lambda original: _nothing)


def _nothing(*args: Any, **kwargs: Any) -> None:
    return None


def _once_imported(patches: Patches, name: str, act: Any) -> None:
    if name in sys.modules:
        act(sys.modules[name])
    else:
        patches.keep(after_import(name, lambda: act(sys.modules[name])))
