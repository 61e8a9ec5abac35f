"""Changes of how ranks exchange gradients: arguments of DistributedDataParallel."""

import functools
import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from training_profiler.instrumentation.patching import Patches
from training_profiler.snapshot.program import DDP, CallFacts
from training_profiler.trials.edits import Edit
from training_profiler.trials.facts import TrialFacts
from training_profiler.trials.treatment import Treatment


@dataclass(frozen=True)
class DdpArgument(Treatment):
    """All modules of DistributedDataParallel are made with an argument."""

    argument: str
    value: bool | int

    def reason_not(self, facts: TrialFacts) -> str | None:
        """Return why not."""
        calls = [call for call in facts.calls if call.kind == DDP]
        if not calls:
            return "no DistributedDataParallel"
        is_set = all(dict(call.arguments).get(self.argument) == str(self.value) for call in calls)
        return "is set already" if is_set else None

    def install(self, patches: Patches, torch: Any) -> None:
        """Change the argument of each module."""
        module = torch.nn.parallel.DistributedDataParallel
        patches.replace(module, "__init__", functools.partial(_setting, self.argument, self.value))

    def edit(self, calls: Sequence[CallFacts]) -> list[Edit]:
        """Return the edit of each module."""
        return [Edit(call, ((self.argument, str(self.value)),)) for call in calls if call.kind == DDP]


def _setting(argument: str, value: bool | int, original: Any) -> Any:
    signature = inspect.signature(original)

    @functools.wraps(original)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807
        bound = signature.bind(self, *args, **kwargs)
        bound.arguments[argument] = value
        original(*bound.args, **bound.kwargs)

    return __init__
