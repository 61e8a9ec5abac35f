"""Automatic instrumentation: installs all patches in a process, and removes them again."""

import functools
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from training_profiler.inspections.early_steps import EarlySteps
from training_profiler.inspections.flop_counter import COUNTED_BY, Flops
from training_profiler.inspections.program_reader import READ_UNTIL, ProgramReader
from training_profiler.instrumentation.call_sites import ReadSite
from training_profiler.instrumentation.context import FETCH, NO_HOOKS, Install, PatchContext, WorkerHooks
from training_profiler.instrumentation.loop_detection.inferred_updates import InferredUpdates
from training_profiler.instrumentation.loop_detection.input_sizes import pop_all
from training_profiler.instrumentation.loop_detection.loader_passes import KnownLoaders
from training_profiler.instrumentation.loop_detection.loop_detector import LoopDetector
from training_profiler.instrumentation.loop_detection.pending_events import PendingEvents, SectionCodes
from training_profiler.instrumentation.loop_detection.step_detector import EpochBoundary, EpochDetector, StepEnds
from training_profiler.instrumentation.patches import (
    calls,
    collectives,
    dataloader,
    dynamo,
    module_call,
    optimizer,
    simple_spans,
)
from training_profiler.instrumentation.patches.simple_spans import SIMPLE_SPANS
from training_profiler.instrumentation.patching import Patches
from training_profiler.model.program import ProgramFacts
from training_profiler.recording.data_loader import LoaderCounts, LoaderRegistry
from training_profiler.recording.recorder import Recorder
from training_profiler.recording.tracebacks import reraise_if_foreign
from training_profiler.safety.fault_guard import warn

_OMP_THREADS: Final = re.compile(r"OMP_NUM_THREADS : \d")  # as torch prints the variable
TRACEBACKS: Final = "tracebacks"
TRACERS: Final = "tracers"
PATCHES: Final[dict[str, Install]] = {
    "data loading": dataloader.install,
    "loader workers": dataloader.install_in_workers,
    "forward pass": module_call.install,
    "backward pass": module_call.install_gradients,
    "autograd functions": module_call.install_functions,
    "optimizer": optimizer.install,
    "gradient scaler": optimizer.install_scaler,
    "graph replays": optimizer.install_replays,
    "transfer": simple_spans.install_transfers,
    **{name: functools.partial(simple_spans.install, spans) for name, spans in SIMPLE_SPANS.items()},
    "collectives": collectives.install,
    "gradient synchronization": collectives.install_ddp,
    "arguments of calls": calls.install,
    TRACEBACKS: calls.install_excepthook,
    TRACERS: dynamo.install_tracers,
}


class Work(NamedTuple):
    """What the forward passes of some time did."""

    with_grad_count: int = 0  # those of evaluations that recorded gradients
    with_grad_ns: int = 0
    input_sizes: tuple[tuple[int, int], ...] = ()  # some updates' numbers, and the elements of a forward pass's input
    tokens: int | None = None  # by the shapes of ids; None where no model looks up ids


@dataclass(eq=False)
class Instrumentation:
    """The patches of this process and the events inferred from them."""

    recorder: Recorder
    begin: Callable[[], Callable[[int], None] | None]  # begins a session, if it may; returns what ends its steps
    loaders: Callable[[], LoaderRegistry | None] = lambda: None  # of the session under way
    workers: WorkerHooks = NO_HOOKS
    read_site: ReadSite = lambda frame: None

    def __post_init__(self) -> None:
        self.context = PatchContext(self.recorder, self._first_event, self.disable, self.workers, self.read_site)
        self.missing: dict[str, str] = {}  # patches that could not be installed, and why
        self._torch: Any = None  # until its import has ended
        self._patches = self.context.installed
        self._overwritten: list[str] = []
        self._backwards = self._updates = self._forwards = self._inferred_updates = self._repeated = 0
        self._has_manual_steps = False
        self._work = Work()  # until now, since it was asked for
        self._begin_run()

    def _begin_run(self) -> None:
        self.flops = Flops(self.context)
        self.program = ProgramReader(self.context)
        self.early_steps = EarlySteps(self.context)
        self.epochs = EpochDetector()
        self._known_loaders: KnownLoaders | None = None
        self._before: dict[str, Any] = {}  # facts of what was before the training, of the detectors that have ended

    def install(self, torch: Any) -> None:
        """Install all patches; one that this version of torch has no place for is left out alone."""
        self._torch = torch
        self.context.use_compiler_of(torch)
        self._install_patch("compiler", dynamo.install, torch)
        for name, install in PATCHES.items():
            if name not in self._patches:
                self._install_patch(name, install, torch)

    def install_early(self) -> None:
        """Install what needs no torch, until that is imported."""
        self._install_patch(TRACEBACKS, calls.install_excepthook, None)

    @property
    def awaits_torch(self) -> bool:
        """Whether torch has not been imported yet."""
        return self._torch is None

    def _install_patch(self, name: str, install: Install, torch: Any) -> None:
        patches = Patches()
        try:
            install(patches, self.context, torch)
        except Exception as error:
            patches.undo()
            self.missing[name] = f"{type(error).__name__}: {error}"
        else:
            self._patches[name] = patches

    @property
    def is_installed(self) -> bool:
        """Whether patches of torch are in place."""
        return bool(self._patches) and not self.awaits_torch

    def uninstall(self) -> None:
        """Remove all patches; calls under way run to their end."""
        self.flops.stop()
        self.program.stop()
        self.early_steps.stop()
        self._keep_work()
        self.context.use_detector(None)
        self.context.fronts.close()
        for patches in reversed(self._patches.values()):
            patches.undo()
        self._patches.clear()

    def step_ended(self, steps: int, counts_flops: bool) -> None:
        """Read and count what only the first steps are asked for; ``steps`` are complete."""
        self.context.guarded(lambda: self.program.step_ended(steps))
        self.context.guarded(lambda: self.context.fronts.place(steps))
        if counts_flops and steps >= READ_UNTIL:
            self.flops.step_ended(steps)
        if steps >= READ_UNTIL and (self.flops.is_over or not counts_flops or steps == COUNTED_BY - 1):
            self.context.guarded(lambda: self.early_steps.begin(steps))

    def program_facts(self) -> ProgramFacts:
        """Return the facts of the program so far."""
        torch, detector = self._torch, self.context.detector
        if detector is not None:
            self.context.later_optimizers.find_main(detector.primary_optimizer, detector.updates)
        facts = self.program.facts()._replace(
            **self.flops.facts,
            calls=self.context.calls.facts(),
            **(self._before if detector is None else detector.phases.first_evaluations.facts()),
            threads=0 if torch is None else torch.get_num_threads(),
            has_omp_threads=torch is not None and _OMP_THREADS.search(torch.__config__.parallel_info()) is not None,
        )
        return self.early_steps.add_to(facts)

    def _first_event(self) -> LoopDetector | None:
        """Return the loop detector of a training thread at its first event, starting a session if there is none."""
        if not self._patches:
            return None
        try:
            before = self.context.detector
            if before is not None and before.has_trained:  # on a thread that has ended
                self._add_up_counts()
                before.close()
                self.early_steps.stop()
                self._keep_work()
            end_step = self.begin()
            if end_step is None:
                self.uninstall()
                return None
            torch = sys.modules["torch"]
            self.recorder.move_watermark(self.recorder.clock())
            pending = PendingEvents(self.recorder)
            codes = SectionCodes(self.recorder.names)
            ends = StepEnds(self.recorder, end_step)
            detector = LoopDetector(pending, codes, torch.nn.Module, torch.is_grad_enabled, ends)
            ends.follow(detector.phases.passes)
            detector.phases.passes.use_loaders(self._loader_of, self.context.calls.place)
            if not self.context.has_optimizer:
                detector.use_inferred_updates(InferredUpdates(_unwrap_with(torch)))
            self.context.use_detector(detector)
            self.program.step_ended(0)
        except Exception as error:
            self.disable(error)
        return self.context.detector

    def _loader_of(self, iterator: Any) -> LoaderCounts | None:
        """Return the counts of the loader behind ``iterator``; None if ``profile_dataloader`` counts its batches."""
        if self.recorder.buffer().is_fetching:
            return None
        if self._known_loaders is None:
            loaders = self.loaders()
            if loaders is None:
                return None
            calls = self.context.calls
            self._known_loaders = KnownLoaders(loaders, calls.site_of_loader, calls.names_of_loader)
        counts = self._known_loaders.counts_of(iterator)
        workers = getattr(iterator, "_workers", None)  # private: may be gone
        if counts is not None and workers:
            self.context.workers.add(counts, [pid for worker in workers if (pid := getattr(worker, "pid", None))])
        return counts

    def awaited(self) -> tuple[LoaderCounts, Any] | None:
        """Return the loader and the iterator that the training thread waits for; None if it does not. On any thread."""
        detector = self.context.detector
        if detector is None or self.context.training_thread.busy_with != FETCH:
            return None
        latest = detector.phases.passes.latest
        return None if latest is None or latest.counts is None else (latest.counts, latest.iterator())

    def disable(self, error: Exception) -> None:
        """Remove all patches after an error of ours and log it once; the training goes on."""
        reraise_if_foreign(error)
        if "all patches" in self.missing:
            return
        self.missing["all patches"] = f"{type(error).__name__}: {error}"
        warn(f"instrumentation disabled, the training goes on: {self.missing['all patches']}", has_traceback=True)
        self._add_up_counts()
        self.recorder.move_watermark(None)
        self.uninstall()

    def _add_up_counts(self) -> None:
        detector = self.context.detector
        if detector is not None:
            self._backwards += detector.backwards
            self._updates += detector.updates
            self._inferred_updates += detector.inferred_updates
            self._forwards += detector.phases.forwards_without_grad
            self._repeated += detector.phases.repeated
            self._has_manual_steps |= detector.has_manual_steps
            self.context.later_optimizers.find_main(detector.primary_optimizer, detector.updates)
            self._before = detector.phases.first_evaluations.facts()

    @property
    def repeated_calls(self) -> int:
        """Number of forward passes that C has recorded."""
        detector = self.context.detector
        return self._repeated + (0 if detector is None else detector.phases.repeated)

    @property
    def is_training(self) -> bool:
        """Whether this process itself is in a training."""
        return self.context.detector is not None and self.context.detector.has_trained

    def pop_work(self) -> Work:
        """Return what was observed since the last call, also by a detector that no longer records."""
        self._keep_work()
        work, self._work = self._work, Work()
        return work

    def _keep_work(self) -> None:
        detector, work = self.context.detector, self._work
        if detector is not None:
            with_grad = [(work.with_grad_count, work.with_grad_ns), *pop_all(detector.phases.with_grad)]
            count, ns = map(sum, zip(*with_grad, strict=True))
            sizes = (*work.input_sizes, *detector.input_sizes.pop())
            tokens = detector.input_sizes.pop_tokens(detector.updates)
            tokens = work.tokens if tokens is None else (work.tokens or 0) + tokens
            self._work = Work(count, ns, sizes, tokens)

    @property
    def marks_loop(self) -> bool:
        """Whether a mark shows the begin of the training loop: patches find it, and not the program's own sections."""
        return self.is_installed and not self._has_manual_steps

    def use_manual_steps(self) -> None:
        """Leave the ends of steps to ``profile_step``."""
        self._has_manual_steps = True
        if self.context.detector is not None:
            self.context.detector.use_manual_steps()

    def loss_begins(self) -> None:
        """Note that the trainer begins to compute the loss, perhaps inside an update."""
        detector = self.context.current_detector() if self.context.detector is not None else None
        if detector is not None:
            self.context.guarded(detector.loss_begins)

    def epoch_boundary(self) -> EpochBoundary | None:
        """Return the epoch boundary since the last step; None without one."""
        detector = self.context.detector
        if detector is None:
            return None
        passes = detector.phases.passes
        latest = passes.latest
        if latest is None or self.epochs.is_same(latest):
            return None
        boundary = self.epochs.next_boundary(latest, passes.is_alone(latest))
        return boundary and boundary._replace(at_ns=detector.phases.with_workers(boundary.at_ns))

    def use_manual_epochs(self) -> None:
        """Leave epochs to ``profile_epoch``; undecided events belong to the epoch before."""
        self.epochs.switch_off()
        if self.context.detector is not None:
            self.context.guarded(self.context.detector.resolve_pending)

    def resolve_before_training(self) -> None:
        """Decide what happened so far if the calling thread has not trained yet: until then nothing else decides it."""
        detector = self.context.detector
        if detector is not None and not detector.has_trained and self.context.training_thread.is_current():
            self.context.guarded(detector.resolve_pending)
            self.context.guarded(lambda: detector.pending.release(self.recorder.clock()))

    def why_nothing(self) -> str:
        """Return why there is nothing to report, after ``close``."""
        if self.missing.get("all patches"):
            return f"the instrumentation was disabled after an error ({self.missing['all patches']})"
        if calls := self._forwards + self._repeated:
            return f"no gradient was computed, so there was no training ({calls} forward passes without one)"
        return "torch was imported, but no training was found: no gradient was computed and no optimizer updated"

    @property
    def has_trained(self) -> bool:
        """Whether gradients were computed or parameters updated."""
        return self._backwards > 0 or self._updates > 0

    def notes(self) -> list[str]:
        """Return a sentence for each thing that could not be measured, after ``close``."""
        notes = [f"not instrumented: {name} ({reason})" for name, reason in self.missing.items()]
        notes += [f"another library or the program replaced the {name!r} patch" for name in self._overwritten]
        if self._inferred_updates and not self._has_manual_steps:
            notes.append(
                f"the program updates its parameters without torch.optim, so steps were inferred: parameters changed "
                f"before {self._inferred_updates} backward passes or the end; profile_step() marks steps exactly"
            )
        elif self._backwards and not self._updates and not self._has_manual_steps:
            times = "once" if self._backwards == 1 else f"{self._backwards} times"
            notes.append(
                f"steps could not be detected: gradients were computed {times}, but no optimizer of torch.optim made "
                f"an update; call profile_step() after each update"
            )
        if self.context.updates_on_other_threads:
            notes.append(
                f"{self.context.updates_on_other_threads} optimizer updates on other threads were not measured: "
                f"only one training thread is instrumented"
            )
        return notes + [note for note in (self.context.gradient_sync.note(), self.flops.note()) if note is not None]

    def close(self) -> None:
        """Decide all undecided events at the end of the run, and remove all patches."""
        detector = self.context.detector
        # A replaced excepthook costs no measurement, and dynamo wraps tracers.
        counted = [name for name in self._patches if name not in (TRACEBACKS, TRACERS)]
        self._overwritten = [name for name in counted if not self._patches[name].are_in_place()]
        self.context.gradient_sync.read()
        try:
            if detector is not None:
                self._add_up_counts()
                detector.close()
        finally:
            self._known_loaders = None
            self.recorder.move_watermark(None)
            self.uninstall()

    def after_fork_in_child(self) -> None:
        """Start again in a forked process; the training before the fork is the parent's."""
        self.early_steps.stop()  # a mode of its own would stay in the child
        self.context.use_detector(None)
        self._work = Work()
        self._begin_run()
        self.context.watch_backward(None)
        self.context.reset_rank_observations()
        self.recorder.move_watermark(None)
        self.context.training_thread.reset()


def _unwrap_with(torch: Any) -> Callable[[Any], Any]:
    """Return the function that ``InferredUpdates`` takes."""
    functorch = getattr(torch._C, "_functorch", None)  # private: may be gone
    names = ("is_functorch_wrapped_tensor", "maybe_get_level", "get_unwrapped", "is_batchedtensor")
    more = ("get_interpreter_stack", "TransformType")
    functions: list[Any] = [getattr(functorch, name, None) for name in (*names, *more)]

    def unwrap(tensor: Any) -> Any:
        if None in functions:
            return None
        is_wrapped, level_of, get_unwrapped, is_batched, stack, kinds = functions
        if not is_wrapped(tensor):
            return tensor
        level = level_of(tensor)
        if any(each.key() != kinds.Vmap for each in stack() or () if each.level() < level):
            return None  # of a gradient within another
        tensor = get_unwrapped(tensor)
        while is_batched(tensor):  # many models at once, by vmap
            tensor = get_unwrapped(tensor)
        return tensor

    return unwrap
