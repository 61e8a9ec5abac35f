"""Patch: torch's tracers. They run a model to write down what it does, which is not a forward pass of a training."""

import functools
import weakref
from collections.abc import Callable
from contextlib import ExitStack
from threading import get_ident
from types import MethodType
from typing import Any

from training_profiler.instrumentation.context import PatchContext
from training_profiler.instrumentation.patching import Patches


def install(patches: Patches, context: PatchContext, torch: Any) -> None:
    """Record nothing while a thread traces, as while it captures a graph, and restore what tracers may see."""
    captures, training_thread = context.captures, context.training_thread
    modes: dict[int, list[ExitStack]] = {}  # entered, by thread
    tracers: set[ExitStack] = set()  # for which other patches are aside

    def record_nothing() -> ExitStack:
        end = ExitStack()
        if captures.on_this_thread() is None:
            captures.begin(end)
            training_thread.capture_begins()
            end.callback(lambda: training_thread.capture_ends(captures.end(end, has_failed=True)))
        return end

    def step_aside() -> ExitStack:
        end = record_nothing()
        if not (tracers or context.is_tracing()):  # dynamo may have to find the patches again
            tracers.add(end)
            end.callback(tracers.discard, end)
            for name, other in context.installed.items():  # tracers name values after variables, and keep stacks
                if name not in ("compiler", "tracers"):
                    end.callback(other.exchange_all, is_back=True)
                    other.exchange_all(is_back=False)
        return end

    def enter() -> ExitStack:
        modes.setdefault(get_ident(), []).append(record_nothing())
        return ExitStack()

    for function in (torch.autograd.backward, torch.autograd.grad):  # TorchScript knows functions by their ids
        torch.jit._builtins._register_builtin(function, f"aten::{function.__name__}")
        weakref.finalize(function, torch.jit._builtins._get_builtin_table().pop, id(function), None)
    wrap = functools.cache(functools.partial(_between, context, step_aside))  # dynamo wraps some of them, too
    for owner in (torch.jit._trace, torch.jit):
        for name in ("trace", "trace_module", "_get_trace_graph"):  # exporters call the last
            patches.replace(owner, name, wrap)
    patches.replace(torch.fx.Tracer, "trace", wrap)
    for name, begin in (("__enter__", enter), ("__exit__", lambda: (modes.get(get_ident()) or [ExitStack()]).pop())):
        patches.replace(torch._subclasses.FakeTensorMode, name, functools.partial(_between, context, begin))


def _between(context: PatchContext, begin: Callable[[], ExitStack], original: Any) -> Any:
    """Return ``original`` between ``begin`` and the end that it returns, without a frame of ours."""

    class TracerEntry:
        @property
        def __call__(self) -> Any:
            call = functools.partial(original)  # Python lets go of it right after the call
            context.guarded(lambda: weakref.finalize(call, begin().close))
            return call

        def __get__(self, instance: Any, owner: Any = None) -> Any:
            return self if instance is None else MethodType(self, instance)

        def __reduce__(self) -> str:
            return str(original.__qualname__)

    return functools.update_wrapper(TracerEntry(), original)
