"""Patches of torch's tracers: dynamo runs our functions as they are, and other tracers do not see them.

Between two graphs of a compiled function, dynamo compiles every Python function that is called. With ours it would
fail and warn.
"""

import functools
import os
import sys
import weakref
from collections.abc import Callable
from contextlib import ExitStack
from threading import get_ident
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any, Final

from training_profiler.instrumentation.context import PatchContext
from training_profiler.instrumentation.fronts import TRACER
from training_profiler.instrumentation.patching import Patches
from training_profiler.recording.untraced import skip

PACKAGE: Final = "training_profiler"
FOLDER: Final = os.path.dirname(os.path.dirname(os.path.dirname(__file__))) + os.sep  # of the package
DYNAMO: Final = "torch._dynamo.eval_frame"


def install(patches: Patches, context: PatchContext, torch: Any) -> None:
    """Hide our functions once dynamo is imported, and watch when it begins to trace."""
    context.after_import(DYNAMO, hide_from_dynamo, patches)
    has_traced = TRACER in sys.modules and _may_have_traced()
    context.after_import(
        TRACER, lambda name: context.fronts.dynamo.begin(sys.modules[name], patches, has_traced), patches
    )


def _may_have_traced() -> bool:
    """Return whether the program has asked dynamo for code; what runs without dynamo has no backend."""
    used = getattr(sys.modules.get(DYNAMO), "cached_backends", None)  # private: may be gone
    return used is None or any(backend is not None for backend in used.values())


def hide_from_dynamo(_: str = DYNAMO) -> None:
    """Make dynamo skip the functions of this package. It still inlines some, and those call ``is_compiling``."""
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] == PACKAGE and isinstance(module, ModuleType):
            for value in list(vars(module).values()):
                for code in _codes_of(value, module.__name__):
                    if code.co_filename == module.__file__:  # all named tuples share some of their code
                        skip(code)


def _codes_of(value: Any, module: str) -> list[CodeType]:
    """Return the code of a function or class of ``module``, including inner functions."""
    if getattr(value, "__module__", None) not in (module, PACKAGE):  # public names say that they are the package's
        return []
    if isinstance(value, FunctionType):
        return _with_inner(value.__code__)
    codes: list[CodeType] = []
    if isinstance(value, type):
        for member in vars(value).values():
            function = getattr(member, "fget", None) or getattr(member, "__func__", member)
            if isinstance(function, FunctionType):
                codes += _with_inner(function.__code__)
    return codes


def _with_inner(code: CodeType) -> list[CodeType]:
    codes = [code]
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            codes += _with_inner(constant)
    return codes


def install_tracers(patches: Patches, context: PatchContext, torch: Any) -> None:
    """Record nothing while a thread traces, as while it captures a graph, and restore what tracers may see.

    Tracers run a model to write down what it does, which is not a forward pass of a training.
    """
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
