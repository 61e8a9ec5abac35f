"""Why a window cannot open at this moment."""

import sys
import threading
from typing import Any

from training_profiler.device.accelerator import find_accelerator


def is_main_thread() -> bool:
    """Return whether this is the thread on which windows are opened and ended."""
    return threading.current_thread() is threading.main_thread()


def is_in_backward() -> bool:
    """Return whether gradients are being computed on this thread: what is stopped there torch starts again after."""
    core: Any = getattr(sys.modules.get("torch"), "_C", None)
    task = getattr(core, "_current_graph_task_id", None)  # private: may be gone
    return task is not None and task() != -1


def obstacle(torch: Any) -> str | None:
    """Return why no window can open now; None where one can, if nobody else profiles."""
    if torch is None or not hasattr(torch, "profiler"):
        return "torch is not imported"
    if not is_main_thread():
        # What is left recording when a thread ends crashes the process.
        return "the training is not on the main thread"
    if is_in_backward():
        return "steps end within a backward pass, where torch would start again what is stopped"
    if torch.compiler.is_compiling():
        return "torch.compile is compiling"
    found = find_accelerator()
    if found is not None and found.is_capturing():
        return "a graph of the accelerator is being recorded"
    return None
