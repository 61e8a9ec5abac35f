"""Automatic instrumentation of real torch, on a fake clock, with the sums of a session."""

import importlib
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed
import torch.optim.swa_utils
import torch.utils.data

from tests.support.recording import FakeClock, FakeRun
from training_profiler.model.program import ProgramFacts
from training_profiler.recording.data_loader import LoaderRegistry
from training_profiler.recording.event_codes import STEP_END
from training_profiler.recording.implementation import Implementation
from training_profiler.runtime.instrumentation import Instrumentation

OPTIMIZER = importlib.import_module("torch.optim.optimizer")
FUNCTIONAL = importlib.import_module("torch.distributed._functional_collectives")
OWNERS = (
    torch,
    torch.Tensor,
    torch.amp.GradScaler,
    torch.autograd,
    torch.autograd.Function,
    torch.autograd.detect_anomaly,
    torch.cuda.CUDAGraph,
    torch.autograd.set_detect_anomaly,
    torch.distributed,
    torch.distributed.distributed_c10d,
    torch.distributed.distributed_c10d.Work,
    FUNCTIONAL,
    torch.fx.Tracer,
    torch.jit,
    torch.jit._trace,
    torch.nn.Module,
    torch.nn.parallel.DistributedDataParallel,
    torch.nn.utils,
    torch.nn.utils.clip_grad,
    torch.optim.Optimizer,
    torch.optim.swa_utils,
    torch.optim.swa_utils.AveragedModel,
    torch.serialization,
    torch._TorchCompileInductorWrapper,
    torch._TorchCompileWrapper,
    torch.utils.data.DataLoader,
    torch.utils.data.dataloader._BaseDataLoaderIter,
    torch.utils.data.dataloader._MultiProcessingDataLoaderIter,
    torch.utils.data._utils.worker,
    torch._subclasses.FakeTensorMode,
    OPTIMIZER,
)

# By pickle, warnings, a process group, and fake tensors.
CHANGED_BY_OTHERS = ("__slotnames__", "__warningregistry__", "_backend", "cache_hits", "cache_misses", "epoch")


def owners() -> list[Any]:
    """Return everything whose attributes patches replace: dynamo is imported by few programs."""
    dynamo = sys.modules.get("torch._dynamo.variables.nn_module")
    return [*OWNERS, *([dynamo] if dynamo else [])]


# The first optimizer imports much of torch, which changes other modules.
torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1).step()


def state_of_torch() -> dict[str, Any]:
    """Return everything that patches may change, in a form that compares by identity."""
    return {
        **{
            f"{owner!r} {name}": id(value)
            for owner in owners()
            for name, value in vars(owner).items()
            if name not in CHANGED_BY_OTHERS
        },
        "update hooks": [
            dict(hooks) for hooks in (OPTIMIZER._global_optimizer_pre_hooks, OPTIMIZER._global_optimizer_post_hooks)
        ],
        "finders": list(sys.meta_path),
        "excepthook": sys.excepthook,
    }


def changed_since(before: dict[str, Any]) -> list[str]:
    """Return the names of everything that has changed."""
    now = state_of_torch()
    return [name for name in {**before, **now} if before.get(name) != now.get(name)]


class TickingClock(FakeClock):
    """A clock in ns that advances by a microsecond at each reading, so that all events have different times."""

    def __call__(self) -> int:
        self.now_ns += 1_000
        return self.now_ns


class InstrumentedTorch:
    """The automatic instrumentation of this process, and what it records."""

    def __init__(self, implementation: Implementation | None = None) -> None:
        self.run = FakeRun(implementation=implementation)
        self.run.accumulator.inferred_filter.is_needed = True
        self.clock = self.run.clock = self.run.recorder.clock = TickingClock(self.run.clock())
        self.steps = 0
        self.sessions = 0
        self.at_step_ends: Callable[[], None] | None = None  # what the profiler does there
        self.loaders: LoaderRegistry | None = None
        self.instrumentation = Instrumentation(self.run.recorder, self._begin, lambda: self.loaders)
        self.context = self.instrumentation.context

    def place_fronts(self) -> None:
        """Have functions of C make the calls of patches, whatever else this process has compiled."""
        self.context.fronts.dynamo.is_idle = True
        self.context.fronts.place()
        assert self.context.fronts.are_placed

    def _begin(self) -> Any:
        self.sessions += 1
        return self._end_step

    def _end_step(self, at_ns: int) -> None:
        self.steps += 1
        self.run.recorder.mark(STEP_END, at_ns)
        self.run.recorder.release(at_ns)
        if self.at_step_ends is not None:
            self.at_step_ends()

    def train(
        self, optimizer: Any, loss_of: Callable[[], Any], steps: int = 30, after: Callable[[Any], object] | None = None
    ) -> ProgramFacts:
        """Return the facts of a program that trains: ``loss_of`` makes the loss of a step, which ``after`` gets."""
        for _ in range(steps):
            loss = loss_of()
            optimizer.zero_grad()
            if loss.requires_grad:
                loss.backward()
            optimizer.step()
            if after is not None:
                after(loss)
            self.instrumentation.step_ended(self.steps, counts_flops=False)
        return self.instrumentation.program_facts()

    def counts(self) -> dict[str, int]:
        """End the run and return the count of each section that occurred; its times add up."""
        self.instrumentation.close()
        totals = self.run.totals()
        assert totals.sections.self_ns.sum() == totals.wall_ns
        assert totals.dropped == 0
        names = self.run.names.names
        return {names[id]: count for id, count in enumerate(totals.sections.count.tolist()) if count}


@contextmanager
def instrumented_torch(implementation: Implementation | None = None) -> Iterator[InstrumentedTorch]:
    """Instrument real torch, and check that it is restored exactly."""
    before = state_of_torch()
    instrumented = InstrumentedTorch(implementation)
    instrumented.instrumentation.install(torch)
    try:
        assert instrumented.instrumentation.missing == {}
        yield instrumented
    finally:
        instrumented.instrumentation.uninstall()
    assert changed_since(before) == []


def on_another_thread(work: Callable[[], Any]) -> Any:
    """Return the result of ``work`` on another thread, which has ended then."""
    answers: list[Any] = []
    thread = threading.Thread(target=lambda: answers.append(work()))
    thread.start()
    thread.join()
    return answers[0]
