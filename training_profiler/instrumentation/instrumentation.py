"""Watching a training that nobody edited: puts the seams in place and takes them out again."""

import contextlib
import functools
import logging
import sys
import threading
from collections.abc import Callable
from typing import Any, Final

from training_profiler.instrumentation.flops.counter import Flops
from training_profiler.instrumentation.loop_detection.epoch_detector import EpochBoundary, EpochDetector
from training_profiler.instrumentation.loop_detection.loaders import KnownLoaders
from training_profiler.instrumentation.loop_detection.loop_detector import LoopDetector
from training_profiler.instrumentation.loop_detection.pending_events import PendingEvents
from training_profiler.instrumentation.loop_detection.section_codes import SectionCodes
from training_profiler.instrumentation.patches import (
    backward,
    collectives,
    dataloader,
    ddp,
    excepthook,
    grad_scaler,
    module_call,
    optimizer,
    simple_spans,
    transfer,
)
from training_profiler.instrumentation.patches.ddp import GradientSync
from training_profiler.instrumentation.patches.dynamo import DYNAMO, hide_from_dynamo
from training_profiler.instrumentation.patches.simple_spans import SIMPLE_SPANS
from training_profiler.instrumentation.patches.sync_points import SyncPoints
from training_profiler.instrumentation.patching import Patches, after_import
from training_profiler.instrumentation.training_thread import TrainingThread
from training_profiler.recording.data_loader import LoaderBook, LoaderCounts
from training_profiler.recording.foreign_errors import let_through
from training_profiler.recording.recorder import Recorder

log: Final = logging.getLogger("training_profiler")
PATCHES: Final[dict[str, Callable[..., None]]] = {
    "data loading": dataloader.install,
    "forward pass": module_call.install,
    "backward pass": backward.install,
    "optimizer": optimizer.install,
    "gradient scaler": grad_scaler.install,
    "transfer": transfer.install,
    **{name: functools.partial(simple_spans.install, spans) for name, spans in SIMPLE_SPANS.items()},
    "collectives": collectives.install,
    "gradient exchange": ddp.install,
    "tracebacks": excepthook.install,
}


class Instrumentation:
    """The seams of this process and what they infer."""

    def __init__(
        self,
        recorder: Recorder,
        begin: Callable[[], Callable[[int], None] | None],
        loaders: Callable[[], LoaderBook | None] = lambda: None,
    ) -> None:
        self._recorder = recorder
        self.training_thread = TrainingThread()
        self._begin_ranks_anew()
        self.flops = Flops(self)
        self.has_scaler = False  # a GradScaler is at work, which may have updates skipped
        self.is_compiling: Callable[[], bool] = lambda: False
        self.is_tracing: Callable[[], bool] = lambda: False  # a compiler's own calls, past dynamo
        self.detector: LoopDetector | None = None  # changed by _tell alone
        self._loaders = loaders  # of the session under way
        self.updates_elsewhere = 0  # on threads beside the training's, in a run
        self.missing: dict[str, str] = {}  # seams that could not be put in place, and why
        self._begin = begin
        self._patches: dict[str, Patches] = {}
        self._lost: list[str] = []
        self._known_loaders: KnownLoaders | None = None
        self.epochs = EpochDetector()
        self._backwards = self._updates = self._forwards = 0
        self._has_steps_by_hand = False

    def install(self, torch: Any) -> None:
        """Put all seams in place; one that this version of torch has no place for stays out alone."""
        self.is_compiling = torch.compiler.is_dynamo_compiling
        self.is_tracing = _tracing_test()
        self._put_in_place("compiler", lambda patches: self.after_import(DYNAMO, hide_from_dynamo, patches))
        for name, install in PATCHES.items():
            self._put_in_place(name, functools.partial(install, watch=self, torch=torch))

    def _put_in_place(self, name: str, install: Callable[[Patches], None]) -> None:
        patches = Patches()
        try:
            install(patches)
        except Exception as error:
            patches.undo()
            self.missing[name] = f"{type(error).__name__}: {error}"
        else:
            self._patches[name] = patches

    def after_import(self, name: str, replace: Callable[[str], None], patches: Patches) -> None:
        """Call ``replace(name)`` when module ``name`` is there: now, or right after its import."""
        if name in sys.modules:
            replace(name)
        else:
            patches.keep(after_import(name, lambda: self.guarded(lambda: replace(name))))

    def guarded(self, work: Callable[[], None]) -> None:
        """Do ``work``; where it fails, take out all seams."""
        try:
            work()
        except Exception as error:
            self.give_up(error)

    def uninstall(self) -> None:
        """Take out all seams; calls under way go through what is left of them."""
        self.flops.stop()
        self._tell(None)
        for patches in reversed(self._patches.values()):
            patches.undo()
        self._patches.clear()

    def is_replaced(self, name: str) -> bool:
        """Return whether the program has put something of its own in the place of seam ``name``."""
        return name in self._patches and not self._patches[name].are_in_place()

    def ready(self, is_likely: bool = False) -> LoopDetector | None:
        """Return the loop detector on the training thread (see ``TrainingThread.is_current``), elsewhere None."""
        return self._of_this_thread() if self.training_thread.is_current(is_likely) else None

    def training(self) -> LoopDetector | None:
        """Return the same for an event that only a training has."""
        detector = self._of_this_thread() if self.training_thread.claim() else None
        if detector is not None:
            self.training_thread.training = detector
        return detector

    def _tell(self, detector: LoopDetector | None) -> None:
        """Have seams tell events to ``detector``."""
        self.detector = detector
        self.training_thread.training = None  # until something is computed that only a training has

    def _of_this_thread(self) -> LoopDetector | None:
        detector = self.detector
        if detector is not None and detector.pending.events is self._recorder.buffer().events:
            return detector
        return self._first_event()

    def events_elsewhere(self) -> list[int] | None:
        """Return the events of the calling thread where that is not the training's, and a run is under way."""
        if self.detector is None or threading.get_ident() == self.training_thread.thread:
            return None
        return self._recorder.buffer().events

    def _first_event(self) -> LoopDetector | None:
        if not self._patches:
            return None
        try:
            before = self.detector
            if before is not None and before.has_trained:  # on a thread that has ended
                self._add_up_counts()
                before.finish()
            end_step = self._begin()
            if end_step is None:
                self.uninstall()
                return None
            torch = sys.modules["torch"]
            self._recorder.watermark_ns = self._recorder.clock()
            pending = PendingEvents(self._recorder)
            codes = SectionCodes(self._recorder.names)
            detector = LoopDetector(pending, codes, torch.nn.Module, torch.is_grad_enabled, end_step)
            detector.phases.passes.loader_of = self._loader_of
            self._tell(detector)
        except Exception as error:
            self.give_up(error)
        return self.detector

    def _loader_of(self, iterator: Any) -> LoaderCounts | None:
        """Return the counts of the loader behind ``iterator``; None where a fetch by hand counts its batches."""
        if self._recorder.buffer().is_fetching:
            return None
        if self._known_loaders is None:
            loaders = self._loaders()
            if loaders is None:
                return None
            self._known_loaders = KnownLoaders(loaders)
        return self._known_loaders.counts_of(iterator)

    def give_up(self, error: Exception) -> None:
        """Take out all seams after an error of ours, and say so once; the training goes on."""
        let_through(error)
        if "all seams" in self.missing:
            return
        self.missing["all seams"] = f"{type(error).__name__}: {error}"
        with contextlib.suppress(Exception):
            log.warning("seams switched off, the training goes on: %s", self.missing["all seams"], exc_info=True)
        self._add_up_counts()
        self._recorder.watermark_ns = None
        self.uninstall()

    def _add_up_counts(self) -> None:
        detector = self.detector
        if detector is not None:
            self._backwards += detector.backwards
            self._updates += detector.updates
            self._forwards += detector.phases.forwards_without_grad
            self._has_steps_by_hand |= detector.has_steps_by_hand

    @property
    def is_training(self) -> bool:
        """Whether a training is under way that this process does itself."""
        return self.detector is not None and self.detector.has_trained

    def steps_come_by_hand(self) -> None:
        """Leave the ends of steps to ``profile_step``."""
        if self.detector is not None:
            self.detector.steps_come_by_hand()

    def _begin_ranks_anew(self) -> None:
        self.meetings = SyncPoints()
        self.exchange = GradientSync(
            self.meetings,
            lambda: self._recorder.clock(),
            backwards=lambda: None if self.detector is None else self.detector.backwards,
        )

    def epoch_boundary(self) -> EpochBoundary | None:
        """Return where an epoch has turned since the step before; None where it has not."""
        passes = None if self.detector is None else self.detector.phases.passes
        latest = None if passes is None else passes.latest
        if passes is None or latest is None or self.epochs.is_same(latest):
            return None
        return self.epochs.turn(latest, passes.is_alone(latest))

    def epoch_changes(self) -> None:
        """Decide what is open, for an epoch begins or ends by hand."""
        self.epochs.is_off = True
        if self.detector is not None:
            self.guarded(self.detector.epoch_changes)

    def why_nothing(self) -> str:
        """Return why there is nothing to report, after ``finish``."""
        if self.missing.get("all seams"):
            return f"watching had to be switched off ({self.missing['all seams']})"
        if self._forwards:
            return f"no gradient was computed, so there was no training ({self._forwards} forward passes without one)"
        return "torch was imported, but no training was seen: no gradient was computed and no optimizer updated"

    @property
    def has_trained(self) -> bool:
        """Whether gradients were computed or parameters updated."""
        return self._backwards > 0 or self._updates > 0

    def notes(self) -> list[str]:
        """Return one sentence for all that could not be recognised, after ``finish``."""
        notes = [f"not watched: {name} ({why})" for name, why in self.missing.items()]
        notes += [f"the program has put something of its own in the place of the seam {name!r}" for name in self._lost]
        if self._backwards and not self._updates and not self._has_steps_by_hand:
            notes.append(
                f"steps could not be recognised: gradients were computed {self._backwards} times, but no optimizer of "
                f"torch.optim was seen to update; profile_step() after each update marks them"
            )
        if self.updates_elsewhere:
            notes.append(
                f"{self.updates_elsewhere} updates of optimizers on threads beside the training's are in none of these "
                f"figures: one thread is watched"
            )
        return notes + [note for note in (self.exchange.note(), self.flops.note()) if note is not None]

    def finish(self) -> None:
        """Decide what is still open, at the end of the run, and take out all seams."""
        detector = self.detector
        # Anybody may want to see the last exception; that takes nothing from what is measured.
        self._lost = [name for name in self._patches if name != "tracebacks" and self.is_replaced(name)]
        self.exchange.read()
        try:
            if detector is not None:
                self._add_up_counts()
                detector.finish()
        finally:
            self._known_loaders = None
            self._recorder.watermark_ns = None
            self.uninstall()

    def in_child(self) -> None:
        """Start anew in a forked process; its parent's training is not its own."""
        self._tell(None)
        self.flops = Flops(self)
        self._known_loaders = None
        self.epochs = EpochDetector()
        self._begin_ranks_anew()
        self._recorder.watermark_ns = None
        self.training_thread.begin_anew()


def _tracing_test() -> Callable[[], bool]:
    """Return a function that tells whether a compiler that runs behind dynamo is tracing; its calls are nobody's."""
    context = getattr(sys.modules.get("torch._guards"), "TracingContext", None)  # private: may be gone
    return (lambda: False) if context is None else (lambda: context.try_get() is not None)
