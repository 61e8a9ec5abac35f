"""A training without torch: its modules, loaders and optimizers call a ``LoopDetector`` as the patches do."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from tests.support.recording import FakeRun
from training_profiler.instrumentation.loop_detection.loop_detector import LoopDetector
from training_profiler.instrumentation.loop_detection.pending_events import PendingEvents, SectionCodes
from training_profiler.recording.event_codes import LOOP_BEGIN, STEP_END, time_only


class Figures(NamedTuple):
    """The results of a run, without empty sections; times in s."""

    counts: dict[str, int]
    total_s: dict[str, float]
    self_s: dict[str, float]  # "" is time outside all sections
    step_s: list[float]  # without time outside steps


class FakeTraining:
    """A training thread on a clock that is advanced explicitly."""

    def __init__(self, run: FakeRun | None = None) -> None:
        self.run = run or FakeRun()
        self.clock = self.run.clock
        self.recorder = self.run.recorder
        self.run.accumulator.inferred_filter.is_needed = True
        self.recorder.watermark_ns = self.clock()  # as at the start of an instrumented session
        self.marks: list[tuple[int, int]] = []  # (kind, ns), in the order of recording
        self.is_grad_enabled = True
        self.is_busy = False  # inside a call in which patches record nothing
        self._remember_marks()
        self.codes = SectionCodes(self.run.names)
        self.pending = PendingEvents(self.recorder)
        self.detector = LoopDetector(self.pending, self.codes, FakeModule, lambda: self.is_grad_enabled, self._end_step)

    def _remember_marks(self) -> None:
        mark = self.recorder.mark

        def remembered(kind: int, at_ns: int | None = None) -> int:
            mark_ns = mark(kind, at_ns)
            self.marks.append((kind, mark_ns))
            return mark_ns

        self.recorder.mark = remembered  # type: ignore[method-assign]

    def _end_step(self, at_ns: int) -> None:
        self.recorder.mark(STEP_END, at_ns)
        self.recorder.release(at_ns)

    @property
    def steps(self) -> int:
        return sum(kind == STEP_END for kind, _ in self.marks)

    @property
    def loop_begin_s(self) -> float | None:
        """The begin of the training loop, in s since the start of the run."""
        begins = [ns for kind, ns in self.marks if kind == LOOP_BEGIN]
        return (begins[0] - 1_000) / 1e9 if begins else None

    def spend(self, seconds: float) -> None:
        """Let time pass outside patched calls."""
        self.clock.advance(seconds)

    @contextmanager
    def no_grad(self) -> Iterator[None]:
        before, self.is_grad_enabled = self.is_grad_enabled, False
        try:
            yield
        finally:
            self.is_grad_enabled = before

    def backward(self, seconds: float = 3.0, work: Callable[[], Any] | None = None) -> None:
        """Compute gradients, and do ``work`` meanwhile, such as a recomputed forward pass."""
        self._train()
        self.detector.backward_begins()
        self.is_busy = True
        try:
            self.clock.advance(seconds)
            if work is not None:
                work()
        finally:
            self.is_busy = False
            self.detector.backward_ends()

    def _train(self) -> None:
        """Act like the patches of training events."""
        if self.detector.calls:
            self.detector.trains_within()
            self.is_busy = False

    def update(
        self,
        optimizer: Any,
        seconds: float = 1.0,
        *,
        closure: Callable[[], Any] | None = None,
        evaluations: int = 1,
        is_skipped: bool = False,
    ) -> None:
        """Update parameters. With a ``closure``, each evaluation computes the loss first."""
        self._train()
        self.detector.update_begins()
        for _ in range(evaluations if closure is not None else 0):
            closure()
            self.clock.advance(seconds)
        if closure is None:
            self.clock.advance(seconds)
        self.detector.update_ends(optimizer, not is_skipped)

    def train(self, model: "FakeModule", loader: "FakeLoader", optimizer: Any) -> None:
        """Train for an epoch: by default steps of 7 s, 1 s of data, 2 s forward, 3 s backward, 1 s of update."""
        for batch in loader:
            model(batch)
            self.backward()
            self.update(optimizer)

    def save(self, seconds: float = 1.0) -> None:
        """Save a checkpoint."""
        if self.detector.phases.is_unresolved:
            self.detector.phases.checkpoint_begins()
        self.pending.record(self.codes.checkpoint)
        self.clock.advance(seconds)
        self.pending.record(-self.codes.checkpoint)

    def start_workers(self, seconds: float = 5.0) -> None:
        """Start the workers of a loader, as the patch of data loaders records it."""
        codes = (time_only(self.codes.data_loading), self.codes.worker_start)
        for code in codes:
            self.pending.record(code)
        self.clock.advance(seconds)
        for code in reversed(codes):
            self.pending.record(-code)

    def finish(self) -> Figures:
        """End the run and return its results; checks that its times add up."""
        self.detector.close()
        self.recorder.watermark_ns = None
        self.run.drain()
        totals, step_ns = self.run.accumulator.pop_totals()
        sums, names = totals.sections, {0: "", **self.run.names.names}
        assert sums.self_ns.sum() == totals.wall_ns
        assert totals.dropped == 0
        assert self.run.accumulator.open_sections(self.recorder.thread_id()) == ()
        assert [ns for _, ns in self.marks] == sorted(ns for _, ns in self.marks)

        def column(values: Any, unit: Any) -> dict[str, Any]:
            return {names[id]: unit(value) for id, value in enumerate(values.tolist()) if value}

        return Figures(
            column(sums.count, int),
            column(sums.total_ns, seconds),
            column(sums.self_ns, seconds),
            [seconds(ns) for ns in step_ns],
        )


def seconds(ns: int) -> float:
    return ns / 1e9


class FakeParameter:
    def __init__(self, requires_grad: bool = True) -> None:
        self.requires_grad = requires_grad


class FakeModule:
    """A module whose call takes ``seconds`` and then calls its submodules, or does ``work`` instead."""

    def __init__(
        self,
        training: FakeTraining,
        *inner: "FakeModule",
        seconds: float = 2.0,
        parameters: int = 1,
        requires_grad: bool = True,
        work: Callable[..., Any] | None = None,
    ) -> None:
        self.world = training
        self.training = requires_grad  # a frozen module is in eval mode
        self.seconds = seconds
        self.work = work
        self._modules = {str(i): module for i, module in enumerate(inner)}
        self._parameters = {str(i): FakeParameter(requires_grad) for i in range(parameters)}

    def train(self, mode: bool = True) -> None:
        self.training = mode

    def eval(self) -> None:
        self.train(False)

    def forward(self, *inputs: Any) -> None:
        self.world.clock.advance(self.seconds)
        if self.work is not None:
            self.work(*inputs)
            return
        for module in self._modules.values():
            module(*inputs)


def _call(self: FakeModule, *inputs: Any) -> None:
    if self.world.is_busy:
        self.forward(*inputs)
    else:
        _outermost(self, inputs)


def _outermost(module: FakeModule, inputs: tuple[Any, ...]) -> None:
    """Call as patches/module_call.py does: two frames between the caller and the detector, neither a method."""
    world = module.world
    caller = sys._getframe(2)
    call = world.detector.call_begins(module, inputs, True, caller)
    world.is_busy = not call.is_explored
    try:
        module.forward(*inputs)
    finally:
        world.is_busy = False
        world.detector.call_ends(call, module)


FakeModule.__call__ = _call  # type: ignore[attr-defined]


class Loss(FakeModule):
    """A module without parameters."""

    def __init__(self, training: FakeTraining, seconds: float = 1.0) -> None:
        super().__init__(training, seconds=seconds, parameters=0)


class FakeLoader:
    """Yields numbers. Each fetch takes ``seconds``; the last call, which ends the pass, takes no time."""

    def __init__(self, training: FakeTraining, batches: int, seconds: float = 1.0) -> None:
        self.world = training
        self.batches = batches
        self.seconds = seconds

    def __iter__(self) -> "FakeIterator":
        return FakeIterator(self)


class FakeIterator:
    def __init__(self, loader: FakeLoader) -> None:
        self.loader = loader
        self.fetched = 0

    def __iter__(self) -> "FakeIterator":
        return self

    def __next__(self) -> int:
        world, loader = self.loader.world, self.loader
        if world.detector.calls:
            world.detector.trains_within()
            world.is_busy = False
        one = world.detector.fetch_begins(self, self.fetched == 0)
        if self.fetched == loader.batches:
            world.detector.fetch_fails(one, is_over=True)
            raise StopIteration
        world.clock.advance(loader.seconds)
        self.fetched += 1
        world.detector.fetch_ends(one)
        return self.fetched


class FakeOptimizer:
    """An optimizer; only its identity matters."""
