"""What sections need while profiling is on and off. Imports next to nothing: every disabled program loads it.

A section inside a compiled function must disappear: dynamo traces the test as the constant ``True`` and follows the
branch that returns a plain ``nullcontext``. torch is never imported for it.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    TracingTest = Callable[[], bool]


class ContextType(type):
    """The type of section classes, whose ``__enter__`` and ``__exit__`` take no section.

    A ``with`` statement calls them as they are. ``contextlib.ExitStack`` calls ``type(section).__enter__(section)``,
    and gets functions that do take one.
    """

    @property
    def __enter__(cls) -> Callable[[Any], Any]:
        return _enter

    @property
    def __exit__(cls) -> Callable[..., Any]:
        return _exit


def _enter(section: Any) -> Any:
    return section.__enter__()


def _exit(section: Any, *exception: object) -> Any:
    return section.__exit__(*exception)


class SectionBase(metaclass=ContextType):
    """A section that is its own copy. Messages of Python about it are the same on and off."""

    __slots__ = ()
    __module__ = "training_profiler"
    __qualname__ = "Section"

    # With bare ``@profile_section`` the decorator replaces the user's function and gets its arguments.
    def __call__(self, *functions: Any, **named: Any) -> Any:
        """Return the decorated function.

        Raises:
            TypeError: it was given something else.
        """
        if len(functions) == 1 and not named and (callable(functions[0]) or isinstance(functions[0], classmethod)):
            return self._decorate(functions[0])
        raise TypeError(
            "profile_section decorates one function, and was given other arguments; "
            'was the name forgotten? example: @profile_section("forward_pass")'
        )

    def _decorate(self, function: Any) -> Any:
        return function

    def __copy__(self) -> Any:
        return self

    def __deepcopy__(self, memo: object) -> Any:
        return self


def tracing_test(replace: Callable[[TracingTest], None]) -> TracingTest:
    """Return a function that returns whether dynamo is tracing its caller.

    With torch loaded it is ``torch.compiler.is_dynamo_compiling``, a constant function in eager code: 20 ns against
    65 ns for ``is_compiling`` (benchmarks/section_cost.py). Before that, each call checks for torch. As soon as eager
    code finds it, ``replace`` gets the cheap function.
    """

    def is_tracing() -> bool:
        # The attribute is absent while torch itself is being imported.
        compiler = getattr(sys.modules.get("torch"), "compiler", None)
        if compiler is None:
            return False
        if compiler.is_compiling():
            return True
        replace(_cheap(compiler))
        return False

    compiler = getattr(sys.modules.get("torch"), "compiler", None)
    return is_tracing if compiler is None else _cheap(compiler)


def _cheap(compiler: object) -> TracingTest:
    return getattr(compiler, "is_dynamo_compiling", None) or compiler.is_compiling  # type: ignore[attr-defined,no-any-return]
