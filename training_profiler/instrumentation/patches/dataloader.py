"""Seam: fetches of ``torch.utils.data.DataLoader``, and the start of its workers."""

import functools
import threading
from typing import TYPE_CHECKING, Any

from training_profiler.instrumentation.loop_detection.section_codes import time_only
from training_profiler.instrumentation.patching import Patches, unseen
from training_profiler.instrumentation.training_thread import FORWARD, FREE
from training_profiler.recording.data_loader import batch_size
from training_profiler.recording.section import DISCARDED

if TYPE_CHECKING:
    from training_profiler.instrumentation.instrumentation import Instrumentation


def install(patches: Patches, watch: "Instrumentation", torch: Any) -> None:
    """Note each batch fetched, whatever the loader's class: all go through one ``__next__`` of their iterators."""
    module = torch.utils.data.dataloader
    patches.replace(module._BaseDataLoaderIter, "__next__", functools.partial(_fetching, watch))
    patches.replace(module._MultiProcessingDataLoaderIter, "__init__", functools.partial(_starting, watch))


def _fetching(watch: "Instrumentation", original: Any) -> Any:
    training_thread, get_ident = watch.training_thread, threading.get_ident

    @functools.wraps(original)
    def __next__(self: Any) -> Any:  # noqa: N807
        detector = training_thread.training
        if detector is None or get_ident() != training_thread.thread:
            elsewhere = watch.events_elsewhere()
            if elsewhere is not None:
                return _fetched_elsewhere(watch, elsewhere, original, self)
            detector = watch.ready()
        if detector is None or training_thread.busy > FORWARD:
            return original(self)
        try:
            if detector.calls:
                detector.trains_within()
            is_first = getattr(self, "_num_yielded", 1) == 0
            one = (None if is_first else detector.fast_path_fetch_begins(self)) or detector.fetch_begins(self, is_first)
        except Exception as error:
            watch.give_up(error)
            return original(self)
        ident = training_thread.fetch_begins()
        is_over = False
        try:
            batch = original(self)
        except BaseException as error:
            is_over = isinstance(error, StopIteration)
            one.has_batch = False
            raise
        else:
            one.has_batch = True
            if one.samples is not None:
                size = batch_size(batch)
                one.samples = None if size is None else one.samples + size
            return batch
        finally:
            training_thread.fetch_ends(ident)
            try:
                if one.has_batch:
                    detector.fetch_ends(one)
                else:
                    detector.fetch_fails(one, is_over)
            except Exception as error:
                watch.give_up(error)

    return unseen(__next__)


def _starting(watch: "Instrumentation", original: Any) -> Any:
    training_thread = watch.training_thread

    @functools.wraps(original)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807
        detector = watch.ready() if training_thread.busy == FREE else None
        if detector is None:
            return original(self, *args, **kwargs)  # type: ignore[no-any-return]
        codes = (time_only(detector.codes.data_loading), detector.codes.worker_start)
        for code in codes:
            detector.pending.note(code)
        ident = training_thread.fetch_begins()
        try:
            return original(self, *args, **kwargs)  # type: ignore[no-any-return]
        finally:
            training_thread.fetch_ends(ident)
            for code in reversed(codes):
                detector.pending.note(-code)

    return __init__


def _fetched_elsewhere(watch: "Instrumentation", events: list[int], original: Any, iterator: Any) -> Any:
    """Return the next batch, which a thread fetches beside the training; its time stands beside the training's."""
    detector = watch.detector
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
