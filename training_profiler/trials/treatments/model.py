"""Changes of how the model computes. They take effect when the outermost module is first called for training."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from training_profiler.instrumentation.loop_detection.modules import parameters_within
from training_profiler.instrumentation.patching import Patches
from training_profiler.snapshot.program import OPTIMIZER, CallFacts
from training_profiler.trials.edits import Edit
from training_profiler.trials.facts import TrialFacts
from training_profiler.trials.treatment import DoesNotApplyError, Treatment


@dataclass(frozen=True)
class ModelTreatment(Treatment):
    """A change of the outermost module."""

    statement: str  # with the same effect, before the optimizer is made

    def install(self, patches: Patches, torch: Any) -> None:
        """Change the module as soon as it is known."""
        _on_first_training_call(patches, torch, lambda module: self.change(torch, module))

    def change(self, torch: Any, module: Any) -> None:
        """Change the outermost module."""

    def edit(self, calls: Sequence[CallFacts]) -> list[Edit]:
        """Return the statement before the first optimizer."""
        return [Edit(call, statement=self.statement, module="torch") for call in calls if call.kind == OPTIMIZER][:1]


def _on_first_training_call(patches: Patches, torch: Any, act: Callable[[Any], None]) -> None:
    """Call ``act`` with the outermost module of the first call that computes gradients of its parameters.

    Lazy modules get their parameters in a call, so the first one after that is meant.
    """
    is_lazy = torch.nn.parameter.is_lazy

    def before(module: Any, args: Any) -> None:
        if not torch.is_grad_enabled() or not module.training or any(map(is_lazy, parameters_within(module))):
            return
        if any(parameter.requires_grad for parameter in parameters_within(module)):
            handle.remove()  # later calls cost what they did
            act(module)

    handle = torch.nn.modules.module.register_module_forward_pre_hook(before)
    patches.keep(handle.remove)


@dataclass(frozen=True)
class Compiled(ModelTreatment):
    """The model is compiled in place."""

    def reason_not(self, facts: TrialFacts) -> str | None:
        """Return why not."""
        return "the program compiles already" if facts.is_compiled else None

    def change(self, torch: Any, module: Any) -> None:
        """Compile the module; it takes effect with its next call."""
        module.compile()


@dataclass(frozen=True)
class ChannelsLast(ModelTreatment):
    """The weights of convolutions have their channels last in memory, which makes images follow."""

    def change(self, torch: Any, module: Any) -> None:
        """Convert the weights in place.

        Raises:
            DoesNotApplyError: it has no convolution of images.
        """
        if not any(parameter.dim() == 4 for parameter in parameters_within(module)):
            raise DoesNotApplyError("the model has no convolutions of images")
        module.to(memory_format=torch.channels_last)


@dataclass(frozen=True)
class Autocast(ModelTreatment):
    """The forward pass computes in bfloat16 where torch thinks it safe."""

    def reason_not(self, facts: TrialFacts) -> str | None:
        """Return why not."""
        if facts.autocast:
            return f"autocast to {facts.autocast} is on already"
        if facts.optimizer is not None and not {"float32"} & set(facts.optimizer.dtypes):
            return "no parameters in float32"
        return None

    def change(self, torch: Any, module: Any) -> None:
        """Wrap the forward pass; it takes effect with the next call."""
        device = next(parameters_within(module)).device.type
        vars(module)["forward"] = torch.autocast(device, dtype=torch.bfloat16)(module.forward)
