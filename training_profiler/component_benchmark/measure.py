"""The whole benchmark: the passes of the model, then each distinct component and its share of its parent."""

import copy
import random
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from training_profiler.base.backends import ready_backends
from training_profiler.base.errors import BenchmarkError
from training_profiler.component_benchmark.result import ComponentBenchmark, MeasuredModule, Stopwatch, Timing
from training_profiler.component_benchmark.subject import (
    Call,
    Node,
    Subject,
    capture,
    copied,
    is_compiled,
    shapes_text,
    tensors_in,
    without_compiler,
)


@contextmanager
def kept(model: nn.Module, optimizer: torch.optim.Optimizer | None = None) -> Iterator[None]:
    """Restore parameters, buffers, gradients, the optimizer's state and random number generators afterwards."""
    tensors = [*model.parameters(), *model.buffers()]
    values = [(tensor, tensor.detach().clone()) for tensor in tensors if not is_lazy(tensor)]
    buffers = [(module, dict(module._buffers)) for module in model.modules()]  # a module may replace a buffer
    gradients = [(parameter, parameter.grad) for parameter in model.parameters()]
    states: list[tuple[Callable[[Any], object], Any]] = [
        (ready.module.set_rng_state_all, ready.module.get_rng_state_all())
        for ready in ready_backends(torch)
        if hasattr(ready.module, "get_rng_state_all")
    ]
    states += [(torch.set_rng_state, torch.get_rng_state()), (random.setstate, random.getstate())]
    if (numpy := sys.modules.get("numpy")) is not None:
        states.append((numpy.random.set_state, numpy.random.get_state()))
    if optimizer is not None:
        states.append((optimizer.load_state_dict, copy.deepcopy(optimizer.state_dict())))
    for parameter, _ in gradients:
        parameter.grad = None
    try:
        yield
    finally:
        for module, own in buffers:
            module._buffers.update(own)
        with torch.no_grad():
            for tensor, before in values:
                tensor.copy_(before)
        for parameter, gradient in gradients:
            parameter.grad = gradient
        for restore, state in states:
            restore(state)


WITH_A_COPY = "changes its input: timed with a copy of it"
BY_DIFFERENCE = "backward by difference: its graph can only be used once"


@dataclass(frozen=True)
class CallTiming:
    """The times of one kind of call; ``note`` explains special cases and failures."""

    forward: Timing | None = None
    backward: Timing | None = None
    note: str | None = None


def _time_call(call: Call, what: str, stopwatch: Stopwatch, has_backward: bool) -> CallTiming:
    """Repeat a call and return its times."""
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


FORWARD, FORWARD_LOSS, BACKWARD, OPTIMIZER = "forward", "forward + loss", "backward", "optimizer step"
COMPILED = (
    "torch.compile: the passes are of the compiled model; components, and their shares, as if nothing was compiled"
)


@dataclass(frozen=True)
class Options:
    """How much to measure."""

    threads: int
    depth: int | None = None  # of the tree of components; None for all
    has_backward: bool = True


def measure(subject: Subject, stopwatch: Stopwatch, options: Options) -> ComponentBenchmark:
    """Return the times of a model and its components. The model is unchanged afterwards.

    Raises:
        BenchmarkError: The model or the loss raises, or the loss is not a scalar.
    """
    model = subject.model
    with kept(model, subject.optimizer), torch.set_grad_enabled(options.has_backward):
        root, never_called = capture(subject)
        passes, notes = _time_passes(subject, stopwatch, options.has_backward)
        timings: dict[str, CallTiming] = {}
        if not is_compiled(model):
            timings[root.call.key] = CallTiming(passes[FORWARD], passes.get(BACKWARD))
        with without_compiler(model):
            _time_components(root, 0, timings, stopwatch, options)
        if BACKWARD in passes:
            notes += _time_update(subject, passes, stopwatch)  # last, because it changes the weights
    first = next(iter(model.parameters()), None)
    modes = {module.training for module in model.modules()}
    return ComponentBenchmark(
        source=subject.source,
        kind=type(model).__name__,
        parameters=_parameters(model),
        device="cpu" if first is None else str(first.device),
        dtype=str(torch.get_default_dtype() if first is None else first.dtype).removeprefix("torch."),
        mode="mixed" if len(modes) > 1 else "train" if modes == {True} else "eval",
        threads=options.threads,
        torch=str(torch.__version__),
        passes=passes,
        loss=subject.loss_in_words,
        root=component_of(root, timings),
        optimizer=type(subject.optimizer).__name__ if subject.optimizer is not None else "AdamW",
        never_called=never_called,
        notes=tuple([COMPILED] if is_compiled(model) else []) + tuple(notes),
    )


def component_of(
    node: Node, timings: Mapping[str, CallTiming], above: tuple[float, float] | None = None
) -> MeasuredModule:
    """Return a node with its times and shares, and its timed children, the slowest first.

    Args:
        node: the calls.
        timings: times by the key of a call.
        above: total forward time of its parent, and of the model; None for the model itself.
    """
    own = timings[node.call.key]
    forward_s = None if own.forward is None else own.forward.median_s
    total_s = None if forward_s is None else node.calls * forward_s
    parent_s, model_s = above if above is not None else (None, total_s)
    below = [inner for inner in node.children.values() if inner.call.key in timings]
    level = (total_s or 0.0, model_s or 0.0)
    children = sorted(
        (component_of(inner, timings, level) for inner in below),
        key=lambda child: (-(child.total_s or 0.0), child.names),
    )
    return MeasuredModule(
        kind=type(node.call.module).__name__,
        names=tuple(node.names),
        inputs=shapes_text(node.call.arguments, node.call.keywords),
        calls=node.calls,
        parameters=_parameters(node.call.module),
        forward=own.forward,
        backward=own.backward,
        note=own.note,
        share_of_parent=total_s / parent_s if total_s is not None and parent_s else None,
        share_of_model=total_s / model_s if total_s is not None and model_s else None,
        rest_s=_rest_s(node, own.forward, children),
        children=tuple(children),
    )


def _rest_s(node: Node, own: Timing | None, children: list[MeasuredModule]) -> float | None:
    totals = [child.total_s for child in children if child.total_s is not None]
    timings = [own, *(child.forward for child in children)]
    if (
        own is None
        or not totals
        or len(totals) < len(node.children)
        or any(timing and timing.is_noisy for timing in timings)
    ):
        return None  # the difference of noisy times is noise
    rest_s = own.median_s - sum(totals) / node.calls
    # Parts that run alone with warm caches take more or less time than inside the model. A rest within the spread of
    # the whole means nothing.
    return rest_s if rest_s > (own.iqr_s or 0.0) else None


def _time_passes(subject: Subject, stopwatch: Stopwatch, has_backward: bool) -> tuple[dict[str, Timing], list[str]]:
    subject.forward()  # a compiled model compiles here
    passes = {FORWARD: stopwatch(FORWARD, subject.forward)}
    if not has_backward:
        if subject.loss is not None or subject.target is not None:
            passes[FORWARD_LOSS] = stopwatch(FORWARD_LOSS, lambda: _loss(subject))
        return passes, ["gradients are off (--no-backward), as in an evaluation"]
    if _loss(subject) is None:
        return passes, ["no output has a gradient: loss, backward and optimizer step are not measured"]
    notes: list[str] = []
    passes[FORWARD_LOSS] = stopwatch(FORWARD_LOSS, lambda: _loss(subject))
    try:
        backward, note = time_backward(
            BACKWARD,
            lambda: [loss] if (loss := _loss(subject)) is not None and loss.requires_grad else [],
            [*subject.model.parameters(), *tensors_in((subject.arguments, subject.keywords))],
            passes[FORWARD_LOSS],
            stopwatch,
        )
    except Exception as error:
        raise _raised(subject, "backward pass", error) from error
    if backward is not None:
        passes[BACKWARD] = backward
    return passes, notes + ([note] if note else [])


def _time_update(subject: Subject, passes: dict[str, Timing], stopwatch: Stopwatch) -> list[str]:
    loss = _loss(subject)
    assert loss is not None
    for parameter in subject.model.parameters():
        parameter.grad = None
    loss.backward()
    try:
        optimizer = subject.make_optimizer()
        optimizer.step()
        passes[OPTIMIZER] = stopwatch(OPTIMIZER, optimizer.step)
    except Exception as error:
        words = " ".join(str(error).split())[:120]
        return [f"optimizer step not measured: {type(error).__name__}: {words}"]
    return []


def _loss(subject: Subject) -> torch.Tensor | None:
    output = subject.forward()
    try:
        return subject.loss_of(output)
    except BenchmarkError:
        raise
    except Exception as error:
        raise _raised(subject, "loss", error) from error


def _raised(subject: Subject, what: str, error: Exception) -> BenchmarkError:
    words = " ".join(str(error).split())[:200]
    return BenchmarkError(f"the {what} of {subject.source} raised {type(error).__name__}: {words}", shows_cause=True)


def _time_components(
    node: Node, depth: int, timings: dict[str, CallTiming], stopwatch: Stopwatch, options: Options
) -> None:
    if node.call.key not in timings:
        try:
            timing = _time_call(node.call, node.names[0] or "model", stopwatch, options.has_backward)
        except Exception as error:  # of a module that is called alone
            words = " ".join(str(error).split())[:120]
            timing = CallTiming(note=f"not measured: called alone it raises {type(error).__name__}: {words}")
        timings[node.call.key] = timing
    if options.depth is None or depth < options.depth:
        for inner in node.children.values():
            _time_components(inner, depth + 1, timings, stopwatch, options)


def _parameters(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())
