"""Keeping our functions out of what dynamo compiles.

Between two graphs of a compiled function, dynamo looks at every Python function that is called and compiles it. Ours it
would try in vain, and warn.
"""

import os
import sys
from collections.abc import Callable
from types import CodeType, FunctionType, ModuleType
from typing import Any, Final

PACKAGE: Final = "training_profiler"
FOLDER: Final = os.path.dirname(os.path.dirname(os.path.dirname(__file__))) + os.sep  # of the package
DYNAMO: Final = "torch._dynamo.eval_frame"


def hide_from_dynamo(name: str = DYNAMO) -> None:
    """Have dynamo run the functions of this package as they are; those that it inlines ask whether it does."""
    skip: Callable[[CodeType], None] | None = getattr(sys.modules[name], "skip_code", None)  # private: may be gone
    if skip is None:
        return
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] == PACKAGE and isinstance(module, ModuleType):
            for value in list(vars(module).values()):
                for code in _codes_of(value, module.__name__):
                    if code.co_filename == module.__file__:  # named tuples share much of theirs with those of others
                        skip(code)


def _codes_of(value: Any, module: str) -> list[CodeType]:
    """Return the code of a function or class of ``module``, and of all functions in it."""
    if getattr(value, "__module__", None) != module:
        return []
    if isinstance(value, FunctionType):
        return _with_inner(value.__code__)
    found: list[CodeType] = []
    if isinstance(value, type):
        for member in vars(value).values():
            function = getattr(member, "fget", None) or getattr(member, "__func__", member)
            if isinstance(function, FunctionType):
                found += _with_inner(function.__code__)
    return found


def _with_inner(code: CodeType) -> list[CodeType]:
    found = [code]
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            found += _with_inner(constant)
    return found
