"""Seam: updates of optimizers, by torch's own hooks, and clearing gradients."""

import functools
import importlib
import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import TYPE_CHECKING, Any

from training_profiler.instrumentation.patching import Patches
from training_profiler.instrumentation.training_thread import FETCH, FORWARD, FREE

if TYPE_CHECKING:
    from training_profiler.instrumentation.instrumentation import Instrumentation


class Updates:
    """Tells outermost updates from those inside of another: of a base class, or of an optimizer that is wrapped."""

    def __init__(self) -> None:
        self.open: list[tuple[int, int]] = []  # (id of optimizer, id of the frame that updates), the outermost first

    def begin(self, optimizer: Any, frame: FrameType | None) -> tuple[bool, bool]:
        """Return whether this update is an outermost one, and whether one before it ended by an exception."""
        had_failed = False
        if self.open and not _is_running(self.open[0][1], frame):
            self.open.clear()  # no hook tells of an update that raised
            had_failed = True
        self.open.append((id(optimizer), id(frame)))
        return len(self.open) == 1, had_failed

    def end(self, optimizer: Any) -> bool:
        """Return whether the update that ended was an outermost one."""
        while self.open and self.open[-1][0] != id(optimizer):
            self.open.pop()
        if self.open:
            self.open.pop()
            return not self.open
        return False


def _is_running(frame_id: int, frame: FrameType | None) -> bool:
    frame = frame.f_back if frame is not None else None
    while frame is not None:
        if id(frame) == frame_id:
            return True
        frame = frame.f_back
    return False


def _was_skipped(optimizer: Any) -> bool:
    """Return whether a fused update did nothing, for a GradScaler found infinite gradients.

    On an accelerator that is not known without waiting for it, so there the update counts.
    """
    found = getattr(optimizer, "found_inf", None)
    return found is not None and found.device.type == "cpu" and bool(found.item())


def install(patches: Patches, watch: "Instrumentation", torch: Any) -> None:
    """Note updates and ``zero_grad``. Both hooks are called for every optimizer of torch's class."""
    updates = Updates()
    module = importlib.import_module("torch.optim.optimizer")  # torch.optim deletes the attribute
    begins, ends = _hooks(watch, updates)
    patches.keep(module.register_optimizer_step_pre_hook(begins).remove)
    patches.keep(module.register_optimizer_step_post_hook(ends).remove)
    patches.replace(module.Optimizer, "zero_grad", functools.partial(_clearing, watch, updates, True))
    patches.replace(torch.nn.Module, "zero_grad", functools.partial(_clearing, watch, updates, False))


def _hooks(watch: "Instrumentation", updates: Updates) -> tuple[Callable[..., None], Callable[..., None]]:
    training_thread, get_ident, is_compiling = watch.training_thread, threading.get_ident, watch.is_compiling

    def begins(optimizer: Any, args: Any, kwargs: Any) -> None:
        if is_compiling() or training_thread.busy == FETCH:
            return
        detector = training_thread.training
        if detector is None or get_ident() != training_thread.thread:
            detector = watch.training()
            if detector is None:
                watch.updates_elsewhere += watch.detector is not None
                return
        try:
            frame = sys._getframe(1)
            if updates.open:
                is_outermost, had_failed = updates.begin(optimizer, frame)
                if had_failed:
                    detector.update.ends()
                if not is_outermost:
                    return
            else:
                updates.open.append((id(optimizer), id(frame)))
            if detector.calls:
                detector.trains_within()
                training_thread.busy = FREE if training_thread.busy <= FORWARD else training_thread.busy
            detector.update_begins()
        except Exception as error:
            watch.give_up(error)

    def ends(optimizer: Any, args: Any, kwargs: Any) -> None:
        if is_compiling():
            return
        detector = training_thread.training
        if detector is None or get_ident() != training_thread.thread:
            return
        try:
            updating = updates.open
            if len(updating) == 1 and updating[0][0] == id(optimizer):
                updating.clear()
                is_outermost = True
            else:
                is_outermost = updates.end(optimizer)
            if is_outermost:
                detector.update_ends(optimizer, not (watch.has_scaler and _was_skipped(optimizer)))
        except Exception as error:
            watch.give_up(error)

    return begins, ends


def _clearing(watch: "Instrumentation", updates: Updates, is_of_optimizer: bool, original: Any) -> Any:
    training_thread, get_ident, is_compiling = watch.training_thread, threading.get_ident, watch.is_compiling

    @functools.wraps(original)
    def zero_grad(self: Any, *args: Any, **kwargs: Any) -> Any:
        if is_compiling():
            return original(self, *args, **kwargs)
        detector = training_thread.training or watch.detector
        if detector is None or training_thread.busy > FORWARD or updates.open or get_ident() != training_thread.thread:
            return original(self, *args, **kwargs)
        if is_of_optimizer and detector.calls:
            detector.trains_within()
            training_thread.busy = FREE
        ends = detector.update.clearing_begins()
        try:
            return original(self, *args, **kwargs)
        finally:
            ends()

    return zero_grad
