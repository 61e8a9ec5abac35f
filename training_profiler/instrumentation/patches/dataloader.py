"""Seam: fetches of ``torch.utils.data.DataLoader``, and the start of its workers."""

import functools
import threading
from typing import TYPE_CHECKING, Any

from training_profiler.instrumentation.loop_detection.section_codes import uncounted
from training_profiler.instrumentation.patching import Patches, unseen
from training_profiler.instrumentation.training_thread import FORWARD, FREE
from training_profiler.recording.data_loader import batch_size
from training_profiler.recording.section import CANCELLED

if TYPE_CHECKING:
    from training_profiler.instrumentation.instrumentation import Watch


def install(patches: Patches, watch: "Watch", torch: Any) -> None:
    """Note each batch fetched, whatever the loader's class: all go through one ``__next__`` of their iterators."""
    module = torch.utils.data.dataloader
    patches.replace(module._BaseDataLoaderIter, "__next__", functools.partial(_fetching, watch))
    patches.replace(module._MultiProcessingDataLoaderIter, "__init__", functools.partial(_starting, watch))


def _fetching(watch: "Watch", original: Any) -> Any:
    gate, get_ident = watch.gate, threading.get_ident

    @functools.wraps(original)
    def __next__(self: Any) -> Any:  # noqa: N807
        inference = gate.training
        if inference is None or get_ident() != gate.thread:
            elsewhere = watch.events_elsewhere()
            if elsewhere is not None:
                return _fetched_elsewhere(watch, elsewhere, original, self)
            inference = watch.ready()
        if inference is None or gate.busy > FORWARD:
            return original(self)
        try:
            if inference.calls:
                inference.trains_within()
            is_first = getattr(self, "_num_yielded", 1) == 0
            one = (None if is_first else inference.usual_fetch_begins(self)) or inference.fetch_begins(self, is_first)
        except Exception as error:
            watch.give_up(error)
            return original(self)
        ident = gate.fetch_begins()
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
            gate.fetch_ends(ident)
            try:
                if one.has_batch:
                    inference.fetch_ends(one)
                else:
                    inference.fetch_fails(one, is_over)
            except Exception as error:
                watch.give_up(error)

    return unseen(__next__)


def _starting(watch: "Watch", original: Any) -> Any:
    gate = watch.gate

    @functools.wraps(original)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807
        inference = watch.ready() if gate.busy == FREE else None
        if inference is None:
            return original(self, *args, **kwargs)  # type: ignore[no-any-return]
        codes = (uncounted(inference.codes.data_loading), inference.codes.worker_start)
        for code in codes:
            inference.tape.note(code)
        ident = gate.fetch_begins()
        try:
            return original(self, *args, **kwargs)  # type: ignore[no-any-return]
        finally:
            gate.fetch_ends(ident)
            for code in reversed(codes):
                inference.tape.note(-code)

    return __init__


def _fetched_elsewhere(watch: "Watch", events: list[int], original: Any, iterator: Any) -> Any:
    """Return the next batch, which a thread fetches beside the training; its time stands beside the training's."""
    inference = watch.inference
    if inference is None:
        return original(iterator)
    clock, code = inference.tape.host_clock, inference.codes.data_loading
    events.extend((clock(), code))
    try:
        batch = original(iterator)
    except BaseException:
        events.extend((clock(), -code - CANCELLED))
        raise
    events.extend((clock(), -code))
    return batch
