"""Patch: captures and replays of CUDA graphs. A replay runs no Python code of the step that was captured."""

import functools
import sys
from collections.abc import Callable
from threading import get_ident
from typing import Any

from training_profiler.instrumentation.context import PatchContext
from training_profiler.instrumentation.graph_captures import CapturedGraph
from training_profiler.instrumentation.loop_detection.loop_detector import LoopDetector
from training_profiler.instrumentation.patching import Patches
from training_profiler.instrumentation.training_thread import FETCH, FORWARD, FREE
from training_profiler.recording.tracebacks import hide_our_frames


def install(patches: Patches, context: PatchContext, torch: Any) -> None:
    """Record replays of graphs that train, and nothing that only happens in a capture, which executes nothing."""
    graph_class = getattr(torch.cuda, "CUDAGraph", None)
    if graph_class is not None:
        patches.replace(graph_class, "capture_begin", functools.partial(_beginning, context))
        patches.replace(graph_class, "capture_end", functools.partial(_ending, context))
        patches.replace(graph_class, "replay", functools.partial(_replaying, context))


def _beginning(context: PatchContext, original: Any) -> Any:
    training_thread, captures, is_compiling = context.training_thread, context.captures, context.is_compiling

    @functools.wraps(original)
    def capture_begin(self: Any, *args: Any, **kwargs: Any) -> Any:
        if is_compiling():
            return original(self, *args, **kwargs)
        try:
            result = original(self, *args, **kwargs)
        except BaseException as error:
            hide_our_frames(error)
            raise
        captures.begin(self)
        training_thread.capture_begins()
        return result

    return capture_begin


def _ending(context: PatchContext, original: Any) -> Any:
    training_thread, captures, is_compiling = context.training_thread, context.captures, context.is_compiling

    @functools.wraps(original)
    def capture_end(self: Any, *args: Any, **kwargs: Any) -> Any:
        if is_compiling():
            return original(self, *args, **kwargs)
        has_failed = True
        try:
            result = original(self, *args, **kwargs)
            has_failed = False
            return result
        except BaseException as error:
            hide_our_frames(error)
            raise
        finally:
            context.guarded(lambda: training_thread.capture_ends(captures.end(self, has_failed=has_failed)))

    return capture_end


def _replaying(context: PatchContext, original: Any) -> Any:
    """Return the replacement of ``replay``. Compiled functions replay many graphs, none of which trains by itself."""
    captures, is_compiling, begins = context.captures, context.is_compiling, _beginner(context)

    @functools.wraps(original)
    def replay(self: Any, *args: Any, **kwargs: Any) -> Any:
        if is_compiling():
            return original(self, *args, **kwargs)
        try:
            graph = captures.training_graph(self)
            detector = None if graph is None else begins(graph)
            if graph is None or detector is None:
                return original(self, *args, **kwargs)
            has_failed = True
            try:
                result = original(self, *args, **kwargs)
                has_failed = False
                return result
            finally:
                try:
                    _ends(context, detector, [] if has_failed else graph.optimizers())
                except Exception as error:
                    context.on_error(error)
        except BaseException as error:
            hide_our_frames(error)
            raise

    return replay


def _beginner(context: PatchContext) -> Callable[[CapturedGraph], LoopDetector | None]:
    """Return a function that records the begin of a replay, and returns None for one that is not recorded."""
    training_thread, captures, updates = context.training_thread, context.captures, context.open_updates

    def begins(graph: CapturedGraph) -> LoopDetector | None:
        try:
            capture = captures.on_this_thread()
            if capture is not None:
                capture.add(graph)
                return None
            if training_thread.busy_with == FETCH:
                return None
            detector = training_thread.confirmed_detector
            if detector is None or get_ident() != training_thread.ident:
                detector = context.confirm_training()
                if detector is None:
                    if graph.optimizers():
                        context.count_update_on_other_thread()
                    return None
            if updates.open:
                if updates.is_running(sys._getframe()):  # an optimizer whose step is a replay
                    return None
                detector.update.end()  # it raised
            if detector.calls:
                detector.trains_within()
                training_thread.busy_with = FREE if training_thread.busy_with <= FORWARD else training_thread.busy_with
            detector.update_begins()
            detector.update.replay_begins(detector.codes.replay)
        except Exception as error:
            context.on_error(error)
            return None
        return detector

    return begins


def _ends(context: PatchContext, detector: LoopDetector, optimizers: list[Any]) -> None:
    """Record the end of a replay, with the optimizers that have updated in it."""
    if not optimizers:
        detector.update.end()
        return
    context.captures.note_replayed_update()
    for optimizer in optimizers:
        detector.update_ends(optimizer)
