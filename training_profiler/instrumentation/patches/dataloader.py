"""Patch: fetches of ``torch.utils.data.DataLoader``, and the start of its workers."""

import functools
from collections.abc import Callable
from threading import get_ident
from time import process_time_ns
from typing import Any

from training_profiler.instrumentation.context import PatchContext
from training_profiler.instrumentation.fronts import FETCH as FETCHING
from training_profiler.instrumentation.loop_detection.loader_passes import LoaderPass
from training_profiler.instrumentation.loop_detection.loop_detector import LoopDetector
from training_profiler.instrumentation.patching import Patches, hidden_from_warnings
from training_profiler.instrumentation.training_thread import FETCH, FORWARD, FREE, TrainingThread
from training_profiler.recording.event_codes import DISCARDED, time_only
from training_profiler.recording.tracebacks import hide_our_frames


def install(patches: Patches, context: PatchContext, torch: Any) -> None:
    """Record each fetch. Loaders of every class share one ``__next__`` of their iterators."""
    module = torch.utils.data.dataloader
    patches.replace(module._BaseDataLoaderIter, "__next__", functools.partial(_fetching, context))
    ended = functools.partial(_ends, context.training_thread)
    context.fronts.offer_attribute(patches, module._BaseDataLoaderIter, "__next__", FETCHING, ended)
    patches.replace(module._MultiProcessingDataLoaderIter, "__init__", functools.partial(_starting, context))


def _fetching(context: PatchContext, original: Any) -> Any:
    training_thread = context.training_thread

    @functools.wraps(original)
    def __next__(self: Any) -> Any:  # noqa: N807
        try:
            loader_pass, detector, fetch = None, training_thread.confirmed_detector, original
            if detector is not None and training_thread.busy_with <= FORWARD and training_thread.ident == get_ident():
                try:  # as nearly all fetches
                    loader_pass = detector.usual_fetch_begins(self)
                except Exception as error:
                    context.on_error(error)
            if loader_pass is not None:
                training_thread.busy_with = FETCH
            else:
                loader_pass, detector, fetch = _begins(context, original, self)
            if loader_pass is None or detector is None:
                return fetch(self)
            batch: object = None
            is_over: bool | None = False
            try:
                batch = fetch(self)
                is_over = None
                return batch
            except StopIteration:
                is_over = True
                raise
            finally:
                try:
                    _ends(training_thread, loader_pass, detector, batch, is_over)
                except Exception as error:
                    context.on_error(error)
        except BaseException as error:
            hide_our_frames(error)
            raise

    return hidden_from_warnings(__next__)


def _ends(
    training_thread: TrainingThread,
    loader_pass: LoaderPass,
    detector: LoopDetector,
    batch: object,
    is_over: bool | None,
) -> None:
    """Record the end of a fetch, which found the loader empty (``is_over``) or not; None where it returned a batch."""
    training_thread.fetch_ends(get_ident())
    if is_over is not None:
        detector.fetch_fails(loader_pass, is_over)
        return
    try:
        if loader_pass.samples is not None:
            loader_pass.add_batch(batch)
    finally:
        detector.fetch_ends(loader_pass)


def _begins(
    context: PatchContext, original: Any, iterator: Any
) -> tuple[LoaderPass | None, LoopDetector | None, Callable[[Any], Any]]:
    """Record the begin of a fetch; return its pass and detector, and how the batch is fetched.

    A fetch without a pass has no end to be recorded.
    """
    events = context.events_of_other_thread()
    if events is not None:
        return None, None, functools.partial(_fetch_on_other_thread, context, events, original)
    detector = context.training_thread.confirmed_detector or context.current_detector()
    loader_pass = None if detector is None else _begin_any(context, detector, iterator)
    if detector is None or loader_pass is None or loader_pass.fetches < loader_pass.measured_at:
        return loader_pass, detector, original
    return loader_pass, detector, functools.partial(_measured, original, loader_pass, detector.pending.host_clock)


@hidden_from_warnings
def _measured(original: Any, loader_pass: LoaderPass, clock: Callable[[], int], iterator: Any) -> Any:
    """Return the next batch, whose CPU time is measured."""
    cpu_ns = process_time_ns()
    batch = original(iterator)
    loader_pass.add_made(process_time_ns() - cpu_ns, clock())
    return batch


def _begin_any(context: PatchContext, detector: LoopDetector, iterator: Any) -> LoaderPass | None:
    """Record the begin of a fetch on the training thread; return None inside a call in which nothing is recorded."""
    training_thread = context.training_thread
    if training_thread.busy_with > FORWARD:
        return None
    try:
        if detector.calls:
            detector.trains_within()
        loader_pass = detector.fetch_begins(iterator, is_first=getattr(iterator, "_num_yielded", 1) == 0)
    except Exception as error:
        context.on_error(error)
        return None
    training_thread.fetch_begins()
    return loader_pass


def _starting(context: PatchContext, original: Any) -> Any:
    training_thread = context.training_thread

    @functools.wraps(original)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807
        try:
            detector = context.current_detector() if training_thread.busy_with == FREE else None
            context.guarded(context.workers.expect)
            if detector is None:
                return original(self, *args, **kwargs)  # type: ignore[no-any-return]
            codes = (time_only(detector.codes.data_loading), detector.codes.worker_start)
            for code in codes:
                detector.pending.record(code)
            ident = training_thread.fetch_begins()
            try:
                return original(self, *args, **kwargs)  # type: ignore[no-any-return]
            finally:
                training_thread.fetch_ends(ident)
                for code in reversed(codes):
                    detector.pending.record(-code)
        except BaseException as error:
            hide_our_frames(error)
            raise

    return __init__


def _fetch_on_other_thread(context: PatchContext, events: list[int], original: Any, iterator: Any) -> Any:
    """Return the next batch, and record the fetch among the events of the calling thread."""
    detector = context.detector
    if detector is None:
        return original(iterator)
    clock, code = detector.pending.host_clock, detector.codes.data_loading
    events.extend((clock(), code))
    try:
        batch = original(iterator)
    except BaseException:
        events.extend((clock(), -code - DISCARDED))
        raise
    events.extend((clock(), -code))
    return batch
