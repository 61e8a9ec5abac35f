"""Changes of the whole process: threads, precision, garbage collection, the allocator."""

import gc
import os
from collections.abc import Callable, Mapping, Sequence
from ctypes.util import find_library
from dataclasses import dataclass
from typing import Any

from training_profiler.instrumentation.patching import Patches
from training_profiler.snapshot.program import OPTIMIZER, THREADS, CallFacts
from training_profiler.tables.backends import CUDA
from training_profiler.trials.edits import Edit
from training_profiler.trials.facts import TrialFacts
from training_profiler.trials.treatment import Treatment


@dataclass(frozen=True)
class Statement(Treatment):
    """One statement, before the optimizer is made."""

    statement: str
    module: str  # that it needs

    def edit(self, calls: Sequence[CallFacts]) -> list[Edit]:
        """Return the statement before the first optimizer."""
        return [Edit(call, statement=self.statement, module=self.module) for call in calls if call.kind == OPTIMIZER][
            :1
        ]


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
class MatmulPrecision(Statement):
    """Products of matrices in TensorFloat32, where the device has it."""

    def reason_not(self, facts: TrialFacts) -> str | None:
        """Return why not."""
        return None if facts.accelerator == CUDA.kind else "only for devices of CUDA"

    def install(self, patches: Patches, torch: Any) -> None:
        """Set the precision."""
        before = torch.get_float32_matmul_precision()
        torch.set_float32_matmul_precision("high")
        patches.keep(lambda: torch.set_float32_matmul_precision(before))


@dataclass(frozen=True)
class CudnnBenchmark(Statement):
    """Convolutions by the algorithm that was the fastest for their shapes."""

    def reason_not(self, facts: TrialFacts) -> str | None:
        """Return why not."""
        return None if facts.accelerator == CUDA.kind else "only for devices of CUDA"

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
