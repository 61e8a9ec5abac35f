"""Changes that are one statement of the program: of the whole process, or of how the model computes."""

import gc
import os
from collections.abc import Callable, Mapping, Sequence
from ctypes.util import find_library
from dataclasses import dataclass
from typing import Any

from training_profiler.instrumentation.loop_detection.modules import parameters_within
from training_profiler.instrumentation.patching import Patches
from training_profiler.snapshot.program import THREADS, CallFacts
from training_profiler.tables.backends import CUDA
from training_profiler.trials.treatments.treatment import DoesNotApplyError, Edit, Statement, Treatment, TrialFacts


@dataclass(frozen=True)
class Threads(Statement):
    """Another number of threads in torch's own operations."""

    count: int

    def reason_not(self, facts: TrialFacts) -> str | None:
        """Return why not."""
        if facts.threads == self.count:
            return "is set already"
        if facts.cores is not None and self.count > max(1.0, facts.cores):
            return f"only {facts.cores:g} CPUs"
        return None

    def install(self, patches: Patches, torch: Any) -> None:
        """Set the number, and keep the program from setting another."""
        before, process = torch.get_num_threads(), os.getpid()
        torch.set_num_threads(self.count)
        patches.keep(lambda: torch.set_num_threads(before))

        def make(original: Any) -> Any:
            def set_num_threads(count: int) -> None:
                if os.getpid() != process:  # a worker of a loader computes with one
                    original(count)

            return set_num_threads

        patches.replace(torch, "set_num_threads", make)

    def edit(self, calls: Sequence[CallFacts]) -> list[Edit]:
        """Return the edit of the program's own call, or a new statement."""
        own = [Edit(call, (("0", str(self.count)),)) for call in calls if call.kind == THREADS]
        return own or super().edit(calls)


@dataclass(frozen=True)
class CudaStatement(Statement):
    """A statement that changes something on devices of CUDA alone."""

    def reason_not(self, facts: TrialFacts) -> str | None:
        """Return why not."""
        return None if facts.accelerator == CUDA.kind else "only for devices of CUDA"


@dataclass(frozen=True)
class MatmulPrecision(CudaStatement):
    """Products of matrices in TensorFloat32, where the device has it."""

    def install(self, patches: Patches, torch: Any) -> None:
        """Set the precision."""
        before = torch.get_float32_matmul_precision()
        torch.set_float32_matmul_precision("high")
        patches.keep(lambda: torch.set_float32_matmul_precision(before))


@dataclass(frozen=True)
class CudnnBenchmark(CudaStatement):
    """Convolutions by the algorithm that was the fastest for their shapes."""

    def install(self, patches: Patches, torch: Any) -> None:
        """Set the flag."""
        flags = torch.backends.cudnn
        before = flags.benchmark
        flags.set_flags(_benchmark=True)
        patches.keep(lambda: flags.set_flags(_benchmark=before))


@dataclass(frozen=True)
class FrozenObjects(Statement):
    """Objects that were made before the optimizer are left out of garbage collections."""

    def install(self, patches: Patches, torch: Any) -> None:
        """Freeze once, where the edit would."""
        optimizer = torch.optim.Optimizer

        def make(original: Any) -> Any:
            def __init__(self: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807
                if not gc.get_freeze_count():
                    gc.collect()
                    gc.freeze()
                original(self, *args, **kwargs)

            return __init__

        patches.replace(optimizer, "__init__", make)
        patches.keep(gc.unfreeze)


@dataclass(frozen=True)
class Allocator(Treatment):
    """Another allocator of the host's memory."""

    allocator: str
    find: Callable[[str], str | None] = find_library

    def reason_not(self, facts: TrialFacts) -> str | None:
        """Return why not."""
        return None if self.find(self.allocator) else f"lib{self.allocator} is not installed"

    def environment(self) -> Mapping[str, str]:
        """Return the variable that loads it."""
        return {"LD_PRELOAD": self.find(self.allocator) or ""}


@dataclass(frozen=True)
class ModelTreatment(Statement):
    """A change of the outermost module, as soon as that is first called for training."""

    def install(self, patches: Patches, torch: Any) -> None:
        """Change the module as soon as it is known."""
        _on_first_training_call(patches, torch, lambda module: self.change(torch, module))

    def change(self, torch: Any, module: Any) -> None:
        """Change the outermost module."""


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
