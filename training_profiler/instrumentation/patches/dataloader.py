"""Patch: fetches of ``torch.utils.data.DataLoader``, and its workers: their start, and the loop that each runs."""

import functools
from collections.abc import Callable
from threading import get_ident
from time import process_time_ns
from typing import Any

from training_profiler.instrumentation.context import FORWARD, FREE, PatchContext, TrainingThread
from training_profiler.instrumentation.fronts import FETCH as FETCHING
from training_profiler.instrumentation.loop_detection.loader_passes import LoaderPass
from training_profiler.instrumentation.loop_detection.loop_detector import LoopDetector
from training_profiler.instrumentation.patching import Patches, hidden_from_warnings
from training_profiler.recording.event_codes import discarded_exit, time_only
from training_profiler.recording.tracebacks import hide_our_frames


def install(patches: Patches, context: PatchContext, torch: Any) -> None:
    """Record each fetch. Loaders of every class share one ``__next__`` of their iterators."""
    module = torch.utils.data.dataloader
    patches.replace(module._BaseDataLoaderIter, "__next__", functools.partial(_fetching, context))
    ended = functools.partial(_ends, context.training_thread)
    context.fronts.offer_attribute(patches, module._BaseDataLoaderIter, "__next__", FETCHING, ended)
    workers = module._MultiProcessingDataLoaderIter
    patches.replace(workers, "__init__", functools.partial(_of_workers, context, True))
    # A trainer that knows the length does not fetch until the end: the workers end when it drops their iterator.
    patches.replace(workers, "_shutdown_workers", functools.partial(_of_workers, context, False))


def _fetching(context: PatchContext, original: Any) -> Any:
    @functools.wraps(original)
    def __next__(self: Any) -> Any:  # noqa: N807
        try:
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
                    _ends(context.training_thread, loader_pass, detector, batch, is_over)
                except Exception as error:
                    context.on_error(error)
        except BaseException as error:
            hide_our_frames(error)
            raise

    return hidden_from_warnings(__next__)


def _begins(
    context: PatchContext, original: Any, iterator: Any
) -> tuple[LoaderPass | None, LoopDetector | None, Callable[[Any], Any]]:
    """Record the begin of a fetch; return its pass and detector, and how the batch is fetched.

    A fetch without a pass has no end to be recorded, as one inside a call in which nothing is recorded.
    """
    training_thread = context.training_thread
    events = context.events_of_other_thread()
    if events is not None:
        return None, None, functools.partial(_fetch_on_other_thread, context, events, original)
    detector = training_thread.confirmed_detector or context.current_detector()
    if detector is None or training_thread.busy_with > FORWARD:
        return None, detector, original
    try:
        if detector.calls:
            detector.trains_within()
        loader_pass = detector.fetch_begins(iterator, is_first=getattr(iterator, "_num_yielded", 1) == 0)
    except Exception as error:
        context.on_error(error)
        return None, detector, original
    training_thread.fetch_begins()
    if loader_pass.fetches < loader_pass.measured_at:
        return loader_pass, detector, original
    return loader_pass, detector, functools.partial(_measured, original, loader_pass, detector.pending.host_clock)


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
        detector.fetch_ends(loader_pass, batch)


@hidden_from_warnings
def _measured(original: Any, loader_pass: LoaderPass, clock: Callable[[], int], iterator: Any) -> Any:
    """Return the next batch, whose CPU time is measured."""
    cpu_ns = process_time_ns()
    batch = original(iterator)
    loader_pass.add_made(process_time_ns() - cpu_ns, clock())
    return batch


def _fetch_on_other_thread(context: PatchContext, events: list[int], original: Any, iterator: Any) -> Any:
    """Return the next batch, and record the fetch among the events of the calling training_thread."""
    detector = context.detector
    if detector is None:
        return original(iterator)
    clock, code = detector.pending.host_clock, detector.codes.data_loading
    events.extend((clock(), code))
    end = discarded_exit(code)
    try:
        batch = original(iterator)
        end = -code
        return batch
    finally:
        events.extend((clock(), end))


def _of_workers(context: PatchContext, are_started: bool, original: Any) -> Any:
    training_thread = context.training_thread

    def codes(detector: LoopDetector) -> list[int]:
        return [time_only(detector.codes.data_loading), *[detector.codes.worker_start] * are_started]

    def begin(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[LoopDetector, int] | None:
        detector = context.current_detector() if training_thread.busy_with == FREE else None
        if are_started:
            context.guarded(context.workers.expect)
        if detector is None or not (are_started or getattr(args[0], "_shutdown", True) is False):
            return None
        for code in codes(detector):
            detector.pending.record(code)
        return detector, training_thread.fetch_begins()

    def end(begun: tuple[LoopDetector, int], has_failed: bool) -> None:
        detector, ident = begun
        training_thread.fetch_ends(ident)
        for code in reversed(codes(detector)):
            detector.pending.record(-code)

    return context.between(original, begin, end)


def install_in_workers(patches: Patches, context: PatchContext, torch: Any) -> None:
    """Observe the loop that every worker process runs, however it is started.

    A forked worker runs the patched loop. A spawned one is given the loop by its name, and runs the patch of its own
    process if that is profiled. No object of the user's is wrapped, so that workers are given the same.
    """

    def make(original: Any) -> Any:
        loop = original.__code__
        return context.between(original, lambda *call: context.workers.observe(loop), lambda end, has_failed: end())

    patches.replace(torch.utils.data._utils.worker, "_worker_loop", make)
