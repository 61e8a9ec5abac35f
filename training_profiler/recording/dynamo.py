"""Whether ``torch.compile`` is tracing the caller at this moment.

A section inside a compiled function must vanish: dynamo traces the question as the constant
``True`` and follows the branch that returns a plain ``nullcontext``. torch is never imported for it.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False  # this module is part of an import that shall cost next to nothing
if TYPE_CHECKING:
    from collections.abc import Callable

    TracingTest = Callable[[], bool]


def tracing_test(settle: Callable[[TracingTest], None]) -> TracingTest:
    """Return a function that tells whether dynamo is tracing its caller.

    Where torch is loaded this is ``torch.compiler.is_dynamo_compiling``: a constant function in eager
    code, 20 ns against the 65 ns of ``is_compiling`` (benchmarks/section_cost.py). Before that it looks
    for torch at each call, and hands the cheap one to ``settle`` as soon as eager code finds it.
    """

    def look_for_torch() -> bool:
        # The attribute is absent while torch itself is being imported.
        compiler = getattr(sys.modules.get("torch"), "compiler", None)
        if compiler is None:
            return False
        if compiler.is_compiling():
            return True
        settle(_cheap(compiler))
        return False

    compiler = getattr(sys.modules.get("torch"), "compiler", None)
    return look_for_torch if compiler is None else _cheap(compiler)


def _cheap(compiler: object) -> TracingTest:
    return getattr(compiler, "is_dynamo_compiling", None) or compiler.is_compiling  # type: ignore[attr-defined,no-any-return]


def without_tracing(work: Callable[[], None]) -> None:
    """Do ``work`` of ours where dynamo, between two compiled graphs, looks at every function that is called."""
    frames = getattr(getattr(sys.modules.get("torch"), "_C", None), "_dynamo", None)
    set_callback = getattr(getattr(frames, "eval_frame", None), "set_eval_frame", None)  # private: may be gone
    if set_callback is None:
        return work()
    before = set_callback(None)
    try:
        work()
    finally:
        set_callback(before)
