"""Changes of how parameters are updated and gradients exchanged: arguments of optimizers and of DDP."""

import functools
import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from training_profiler.diagnosis.compute_fixes import can_fuse
from training_profiler.instrumentation.patching import Patches
from training_profiler.snapshot.program import DDP, OPTIMIZER, ZERO_GRAD, CallFacts
from training_profiler.trials.treatments.treatment import Edit, Treatment, TrialFacts, with_arguments

NO_OPTIMIZER: Final = "no optimizer of torch.optim"
IS_SET: Final = "is set already"


@dataclass(frozen=True)
class OptimizerArgument(Treatment):
    """All optimizers that have the argument "fused" or "foreach" are made with it; only one of the two can be set."""

    def reason_not(self, facts: TrialFacts) -> str | None:
        """Return why not."""
        optimizer = facts.optimizer
        if optimizer is None:
            return NO_OPTIMIZER
        has, now = (
            (optimizer.has_fused, optimizer.fused)
            if self.name == "fused"
            else (optimizer.has_foreach, optimizer.foreach)
        )
        if not has:
            return f"{optimizer.name} has no such form"
        if now:
            return IS_SET
        if self.name == "fused":
            return None if can_fuse(optimizer) else "not for these parameters"
        if optimizer.fused:
            return "the optimizer is fused"
        return "is the default on accelerators" if facts.accelerator and now is None else None

    def install(self, patches: Patches, torch: Any) -> None:
        """Change the arguments of each class of torch that has them."""
        name = self.name
        for kind in {value for value in vars(torch.optim).values() if isinstance(value, type)}:
            if "__init__" in vars(kind) and {"foreach", name} <= inspect.signature(kind).parameters.keys():
                changed = {"foreach": None, "fused": None, name: True}
                patches.replace(kind, "__init__", functools.partial(with_arguments, **changed))

    def edit(self, calls: Sequence[CallFacts]) -> list[Edit]:
        """Return the edit of each optimizer that has the argument."""
        other = "foreach" if self.name == "fused" else "fused"
        return [
            Edit(call, (self.argument, *([(other, "None")] if now.get(other) == "True" else [])))
            for call in calls
            if call.kind == OPTIMIZER and self.name in (now := dict(call.arguments))
        ]


@dataclass(frozen=True)
class ClearedGradients(Treatment):
    """Gradients are dropped instead of filled with zeros, where the program asks for zeros."""

    def reason_not(self, facts: TrialFacts) -> str | None:
        """Return why not."""
        return None if any(call.kind == ZERO_GRAD for call in facts.calls) else "no zero_grad(set_to_none=False)"

    def install(self, patches: Patches, torch: Any) -> None:
        """Ignore the argument of the program."""
        for kind in (torch.optim.Optimizer, torch.nn.Module):
            patches.replace(kind, "zero_grad", _dropping)

    def edit(self, calls: Sequence[CallFacts]) -> list[Edit]:
        """Return the edit of each call that asks for zeros."""
        return [Edit(call, (self.argument,)) for call in calls if call.kind == ZERO_GRAD]


def _dropping(original: Any) -> Any:
    @functools.wraps(original)
    def zero_grad(self: Any, set_to_none: bool = True) -> None:
        original(self)

    return zero_grad


@dataclass(frozen=True)
class DdpArgument(Treatment):
    """All modules of DistributedDataParallel are made with an argument."""

    value: bool | int = True

    def reason_not(self, facts: TrialFacts) -> str | None:
        """Return why not."""
        calls = [call for call in facts.calls if call.kind == DDP]
        if not calls:
            return "no DistributedDataParallel"
        is_set = all(dict(call.arguments).get(self.family) == str(self.value) for call in calls)
        return IS_SET if is_set else None

    def install(self, patches: Patches, torch: Any) -> None:
        """Change the argument of each module."""
        module = torch.nn.parallel.DistributedDataParallel
        patches.replace(module, "__init__", functools.partial(with_arguments, **{self.family: self.value}))

    def edit(self, calls: Sequence[CallFacts]) -> list[Edit]:
        """Return the edit of each module."""
        return [Edit(call, (self.argument,)) for call in calls if call.kind == DDP]
