"""Whether ``torch.compile`` is tracing the caller.

A section inside a compiled function must disappear: dynamo traces the test as the constant ``True`` and follows the
branch that returns a plain ``nullcontext``. torch is never imported for it.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False  # with profiling off, importing this module must cost almost nothing
if TYPE_CHECKING:
    from collections.abc import Callable

    TracingTest = Callable[[], bool]


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
