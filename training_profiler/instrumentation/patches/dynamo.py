"""Patch: dynamo runs our functions as they are.

Between two graphs of a compiled function, dynamo compiles every Python function that is called. With ours it would
fail and warn.
"""

import os
import sys
from types import CodeType, FunctionType, ModuleType
from typing import Any, Final

from training_profiler.instrumentation.context import PatchContext
from training_profiler.instrumentation.dynamo_watch import TRACER
from training_profiler.instrumentation.patching import Patches
from training_profiler.recording.untraced import skip

PACKAGE: Final = "training_profiler"
FOLDER: Final = os.path.dirname(os.path.dirname(os.path.dirname(__file__))) + os.sep  # of the package
DYNAMO: Final = "torch._dynamo.eval_frame"


def install(patches: Patches, context: PatchContext, torch: Any) -> None:
    """Hide our functions once dynamo is imported, and watch when it begins to trace."""
    context.after_import(DYNAMO, hide_from_dynamo, patches)
    has_traced = TRACER in sys.modules and _may_have_traced()
    context.after_import(TRACER, lambda name: context.dynamo.begin(sys.modules[name], patches, has_traced), patches)


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
