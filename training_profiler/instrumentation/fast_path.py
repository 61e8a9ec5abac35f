"""What patches do in nearly every call of a training under way. native/fast_path.h has the same in C."""

from collections.abc import Callable
from threading import get_ident
from types import FrameType
from typing import Any, Protocol

from training_profiler.instrumentation.loop_detection.loader_passes import LoaderPass, Phase
from training_profiler.instrumentation.loop_detection.loop_detector import LoopDetector
from training_profiler.instrumentation.loop_detection.outermost_call import ModuleCall
from training_profiler.instrumentation.open_updates import OpenUpdates
from training_profiler.instrumentation.training_thread import (
    BACKWARD,
    FETCH,
    FORWARD,
    FREE,
    OTHER_PATCH,
    TrainingThread,
)
from training_profiler.recording.fields import IS_NATIVE
from training_profiler.recording.implementation import Implementation


class Gradients(Protocol):
    """What asks more of a backward pass or an update than its time; ``PatchContext`` has it."""

    @property
    def backward_watch(self) -> object | None:
        """Receives the begin of each backward pass."""

    @property
    def unused_graph(self) -> int | None:
        """Set if a gradient has a graph of its own that nothing used so far."""

    @property
    def updates_at_kept(self) -> int | None:
        """Set if the last backward pass kept its graph."""

    @property
    def has_grad_scaler(self) -> bool:
        """Whether updates may be skipped."""


class FastPath:
    """Records the calls that a training makes in each step, each by one call at its begin and one at its end.

    A begin returns None or False where it has done nothing, because the patch has to ask more: whose thread it is, what
    the thread is in, or what the call is for.
    """

    def __init__(self, training_thread: TrainingThread, updates: OpenUpdates, gradients: Gradients) -> None:
        self._thread = training_thread
        self._updates = updates
        self._gradients = gradients

    def _detector(self) -> LoopDetector | None:
        """Return the detector of the calling thread if it has trained; None on others."""
        thread = self._thread
        return thread.confirmed_detector if thread.ident == get_ident() else None

    def call_begins(
        self, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any], caller: FrameType
    ) -> ModuleCall | None:
        """Record the begin of an outermost call that the same function makes in each step, and return it."""
        training_thread, detector = self._thread, self._detector()
        if detector is None or training_thread.busy_with or module._compiled_call_impl is not None:
            return None
        call = detector.fast_path_call_begins(module, args, kwargs, caller)
        if call is None and not training_thread.function:
            call = detector.repeated_call_begins(module, caller)
        if call is not None:
            training_thread.busy_with = FORWARD
        return call

    def call_ends(self, call: ModuleCall, module: Any, detector: LoopDetector) -> bool:
        """Record the end of such a call; return whether its end needs nothing more than that."""
        training_thread, calls = self._thread, detector.calls
        if training_thread.confirmed_detector is not detector or not calls or calls[-1] is not call:
            return False
        if not call.is_plain and detector.repeated_call_ends(call):
            training_thread.busy_with = FREE
            return True
        if not (call.is_plain and module.training):
            return False
        training_thread.busy_with = FREE
        calls.pop()
        detector.forward_ends()
        return True

    def fetch_begins(self, iterator: Any) -> LoaderPass | None:
        """Record the begin of a fetch that surely is for the training, and return its pass.

        The CPU time of a few batches is measured, which the slower path does.
        """
        training_thread, detector = self._thread, self._detector()
        if detector is None or training_thread.busy_with > FORWARD or detector.calls:
            return None
        latest = detector.phases.passes.latest
        if latest is None or latest.fetches >= latest.measured_at:
            return None
        if getattr(iterator, "_num_yielded", 1) == 0:
            return None
        loader_pass = detector.fast_path_fetch_begins(iterator)
        if loader_pass is not None:
            training_thread.busy_with = FETCH
        return loader_pass

    def fetch_ends(self, loader_pass: LoaderPass, detector: LoopDetector, batch: object) -> None:
        """Record the end of any fetch that returned a batch, and count its samples."""
        training_thread, ident = self._thread, get_ident()
        try:
            if loader_pass.samples is not None:
                loader_pass.add_batch(batch)
        finally:
            if training_thread.fetching:
                training_thread.fetch_ends(ident)
            elif ident == training_thread.ident:
                training_thread.busy_with = FREE
            detector.fetch_ends(loader_pass)

    def backward_begins(self, keeps_graph: object, creates_graph: object) -> LoopDetector | None:
        """Record the begin of a backward pass outside all calls; return the detector that has done it.

        As in nearly all trainings, the graph is freed, and gradients get none.
        """
        training_thread, gradients, detector = self._thread, self._gradients, self._detector()
        if detector is None or training_thread.busy_with or detector.calls or detector.inferred is not None:
            return None
        if (
            gradients.backward_watch is not None
            or gradients.unused_graph is not None
            or gradients.updates_at_kept is not None
            or not (keeps_graph is None or keeps_graph is False)
            or creates_graph is not False
        ):
            return None
        detector.backward_begins()
        training_thread.busy_with = BACKWARD
        return detector

    def backward_ends(self, detector: LoopDetector) -> None:
        """Record the end of such a backward pass."""
        training_thread = self._thread
        training_thread.busy_with = FREE
        detector.backward_ends()

    def transfer_begins(self) -> LoopDetector | None:
        """Record that tensors begin to move to a device, outside all calls and updates; return what has done it."""
        training_thread, detector = self._thread, self._detector()
        if detector is None or training_thread.busy_with or detector.is_shadowed:
            return None
        if self._updates.open or detector.update.is_scaling:
            return None
        detector.transfer_begins()
        training_thread.busy_with = OTHER_PATCH
        return detector

    def transfer_ends(self, detector: LoopDetector) -> None:
        """Record the end of such a transfer."""
        training_thread = self._thread
        training_thread.busy_with = FREE
        detector.transfer_ends()

    def clearing_begins(self) -> int:
        """Record that clearing of gradients begins, outside all calls and updates; return its code, or 0."""
        detector = self._detector()
        if detector is None or self._thread.busy_with or self._updates.open or detector.calls:
            return 0
        return detector.update.clearing_begins()

    def clearing_ends(self, code: int, detector: LoopDetector) -> None:
        """Record that gradients are cleared."""
        detector.update.clearing_ends(code)

    def update_begins(self, optimizer: Any, frame: FrameType) -> bool:
        """Record the begin of an outermost update outside all calls; return whether that was done."""
        updates, detector = self._updates, self._detector()
        if detector is None or self._thread.busy_with == FETCH or updates.open or detector.calls:
            return False
        updates.open.append((id(optimizer), id(frame), frame.f_code))
        detector.update_begins()
        return True

    def update_ends(self, optimizer: Any) -> bool:
        """Record the end of an outermost update that follows a backward pass; return whether that was done."""
        updates, detector = self._updates, self._detector()
        if detector is None or self._gradients.has_grad_scaler or not updates.is_alone(optimizer):
            return False
        if not updates.follows_backward(detector.backwards):
            return False
        updates.open.clear()
        detector.update_ends(optimizer)
        return True

    def use_library(self, is_grad_enabled: Callable[[], bool], tensor: type) -> bool:
        """Ask torch's library in C++ what this function says, and for the length of a batch.

        The functions for Python take longer than the rest of a begin or an end. Return whether the library was found,
        and says of gradients what the function does.
        """
        return False

    def forget(self) -> None:
        """Let go of the objects of the program that are kept for the next calls, because another detector follows."""


def new_fast_path(
    implementation: Implementation, training_thread: TrainingThread, updates: OpenUpdates, gradients: Gradients
) -> FastPath:
    """Return the fast paths in C where that serves."""
    if implementation.fast_path is not None and IS_NATIVE:
        made = implementation.fast_path(training_thread, updates, gradients, Phase.TRAINING)
        return made  # type: ignore[no-any-return]
    return FastPath(training_thread, updates, gradients)
