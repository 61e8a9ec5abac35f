"""Keeps dynamo, the tracer of ``torch.compile``, from compiling functions of the profiler.

Between two graphs of a compiled function, dynamo compiles every other function that is called. What it offers against
that is private, and may be gone. torch is never imported for it.
"""

import sys
from collections.abc import Callable
from types import CodeType
from typing import Any, Final

_SKIPPED_WITH_CALLEES: Final[set[CodeType]] = set()


def skip(code: CodeType) -> None:
    """Make dynamo run this function as it is. What it calls may be compiled, such as a model under our patch."""
    frames = _eval_frame()
    if hasattr(frames, "skip_code"):  # torch before 2.7
        frames.skip_code(code)
    elif hasattr(frames, "set_code_exec_strategy"):
        action = frames._FrameAction
        callees = action.SKIP if code in _SKIPPED_WITH_CALLEES else action.DEFAULT
        frames.set_code_exec_strategy(code, frames._FrameExecStrategy(action.SKIP, callees))


def skip_with_callees(code: CodeType) -> None:
    """Make dynamo run this function and all that it calls as they are, also after a later ``skip``."""
    _SKIPPED_WITH_CALLEES.add(code)
    skip(code)


def without_tracing(work: Callable[[], None]) -> None:
    """Do ``work`` of ours without dynamo."""
    set_callback = getattr(_eval_frame(), "set_eval_frame", None)
    if set_callback is None:
        return work()
    before = set_callback(None)
    try:
        work()
    finally:
        set_callback(before)


def _eval_frame() -> Any:
    """Return the module that torch itself loads, long before dynamo; None without it."""
    frames: Any = sys.modules.get("torch")
    for name in ("_C", "_dynamo", "eval_frame"):
        frames = getattr(frames, name, None)
    return frames
