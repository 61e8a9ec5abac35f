"""Changes of how parameters are updated: arguments of the optimizers of torch."""

import functools
import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from training_profiler.diagnosis.compute_fixes import can_fuse
from training_profiler.instrumentation.patching import Patches
from training_profiler.snapshot.program import OPTIMIZER, ZERO_GRAD, CallFacts
from training_profiler.trials.edits import Edit
from training_profiler.trials.facts import TrialFacts
from training_profiler.trials.treatment import Treatment

NO_OPTIMIZER: Final = "no optimizer of torch.optim"
IS_SET: Final = "is set already"


@dataclass(frozen=True)
class OptimizerArgument(Treatment):
    """All optimizers that have the argument are made with it."""

    argument: str  # "fused" or "foreach", of which only one can be set

    def reason_not(self, facts: TrialFacts) -> str | None:
        """Return why not."""
        optimizer = facts.optimizer
        if optimizer is None:
            return NO_OPTIMIZER
        has, now = (
            (optimizer.has_fused, optimizer.fused)
            if self.argument == "fused"
            else (optimizer.has_foreach, optimizer.foreach)
        )
        if not has:
            return f"{optimizer.name} has no such form"
        if now:
            return IS_SET
        if self.argument == "fused":
            return None if can_fuse(optimizer) else "not for these parameters"
        if optimizer.fused:
            return "the optimizer is fused"
        return "is the default on accelerators" if facts.accelerator and now is None else None

    def install(self, patches: Patches, torch: Any) -> None:
        """Change the arguments of each class of torch that has them."""
        for kind in {value for value in vars(torch.optim).values() if isinstance(value, type)}:
            if "__init__" in vars(kind) and {"foreach", self.argument} <= inspect.signature(kind).parameters.keys():
                patches.replace(kind, "__init__", functools.partial(_setting, self.argument))

    def edit(self, calls: Sequence[CallFacts]) -> list[Edit]:
        """Return the edit of each optimizer that has the argument."""
        other = "foreach" if self.argument == "fused" else "fused"
        return [
            # Only one of the two may be set.
            Edit(call, ((self.argument, "True"), *([(other, "None")] if now.get(other) == "True" else [])))
            for call in calls
            if call.kind == OPTIMIZER and self.argument in (now := dict(call.arguments))
        ]


def _setting(argument: str, original: Any) -> Any:
    signature = inspect.signature(original)

    @functools.wraps(original)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807
        bound = signature.bind(self, *args, **kwargs)
        bound.arguments.update({name: None for name in ("foreach", "fused") if name in signature.parameters})
        bound.arguments[argument] = True
        original(*bound.args, **bound.kwargs)

    return __init__


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
        return [Edit(call, (("set_to_none", "True"),)) for call in calls if call.kind == ZERO_GRAD]


def _dropping(original: Any) -> Any:
    @functools.wraps(original)
    def zero_grad(self: Any, set_to_none: bool = True) -> None:
        original(self)

    return zero_grad
