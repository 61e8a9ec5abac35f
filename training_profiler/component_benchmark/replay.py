"""Times the forward and the backward pass of a captured call or of the whole model."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch

from training_profiler.component_benchmark.capture import Call, copied
from training_profiler.component_benchmark.result import Stopwatch, Timing
from training_profiler.component_benchmark.subject import tensors_in

WITH_A_COPY = "changes its input: timed with a copy of it"
BY_DIFFERENCE = "backward by difference: its graph can only be used once"


@dataclass(frozen=True)
class CallTiming:
    """The times of one kind of call; ``note`` explains special cases and failures."""

    forward: Timing | None = None
    backward: Timing | None = None
    note: str | None = None


def time_call(call: Call, what: str, stopwatch: Stopwatch, has_backward: bool) -> CallTiming:
    """Repeat a call and return its times. If the module raises when called alone, return the error as a note."""
    try:
        return _time_call(call, what, stopwatch, has_backward)
    except Exception as error:
        words = " ".join(str(error).split())[:120]
        return CallTiming(note=f"not measured: called alone it raises {type(error).__name__}: {words}")


def _time_call(call: Call, what: str, stopwatch: Stopwatch, has_backward: bool) -> CallTiming:
    module, arguments, keywords = call.module, call.arguments, call.keywords

    def run() -> Any:
        return module(*arguments, **keywords)

    def run_on_copies() -> Any:
        return module(*copied(arguments, is_leaf=False), **copied(keywords, is_leaf=False))

    with call.surroundings.again():
        forward_of = run_on_copies if _writes_to_its_input(call) else run
        forward = stopwatch(f"{what}: forward", forward_of)
    notes = [WITH_A_COPY] if forward_of is run_on_copies else []
    backward = None
    if has_backward and call.surroundings.has_gradient:

        def outputs() -> list[torch.Tensor]:
            with call.surroundings.again():
                return [out for out in tensors_in(forward_of()) if out.requires_grad and out.is_floating_point()]

        leaves = [*module.parameters(), *tensors_in((arguments, keywords))]
        backward, note = time_backward(f"{what}: backward", outputs, leaves, forward, stopwatch)
        notes += [note] if note else []
    return CallTiming(forward, backward, "; ".join(notes) or None)


def time_backward(
    what: str,
    outputs: Callable[[], list[torch.Tensor]],
    leaves: Iterable[torch.Tensor],
    forward: Timing,
    stopwatch: Stopwatch,
) -> tuple[Timing | None, str | None]:
    """Return the time of the backward pass from ``outputs`` to ``leaves``, and a note on the method.

    Gradients are None at the start of each run. The same graph is used again and again. If a graph can only be used
    once, both passes are timed and the time of ``forward`` is subtracted. (None, None) if no output has a gradient.
    """
    ends = outputs()
    if not ends:
        return None, None
    slots = [leaf for leaf in leaves if leaf.is_leaf and leaf.requires_grad]
    slopes = [torch.ones_like(end) for end in ends]

    def clear() -> None:
        for leaf in slots:
            leaf.grad = None

    def again() -> None:
        clear()
        torch.autograd.backward(ends, slopes, retain_graph=True)

    def both() -> None:
        clear()
        torch.autograd.backward(outputs(), slopes)

    if not _succeeds_twice(again):
        both()  # raises if the backward pass itself fails
        timing = stopwatch(what, both)
        clear()
        return _without(timing, forward), BY_DIFFERENCE
    timing = stopwatch(what, again)
    clear()
    return timing, None


def _succeeds_twice(run: Callable[[], None]) -> bool:
    try:
        run()
        run()
    except RuntimeError:
        return False
    return True


def _without(both: Timing, forward: Timing) -> Timing | None:
    if both.median_s <= forward.median_s:
        return None  # the clock cannot resolve the difference
    iqr_s = None
    if both.iqr_s is not None and forward.iqr_s is not None:
        iqr_s = (both.iqr_s**2 + forward.iqr_s**2) ** 0.5
    return Timing(both.median_s - forward.median_s, iqr_s, both.measurements, both.runs_each)


def _writes_to_its_input(call: Call) -> bool:
    arguments, keywords = copied(call.arguments, is_leaf=False), copied(call.keywords, is_leaf=False)
    given = [tensor for tensor in tensors_in((arguments, keywords)) if not tensor.is_inference()]
    before = [tensor._version for tensor in given]
    call.module(*arguments, **keywords)
    return [tensor._version for tensor in given] != before
