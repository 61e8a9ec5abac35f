"""Detects the program's own profilers, which take precedence.

Two active profilers of torch empty the outer one, and its export crashes the process (torch 2.13). This also happens
while one of them warms up. Torch has no query for a profiler that warms up, so this module searches for its object.
"""

import contextlib
import ctypes
import gc
import re
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any, Final

from training_profiler.instrumentation.patching import Patches
from training_profiler.tables.backends import CUDA, find_accelerator


def stop_after_fork_in_child(torch: Any, profile: Any) -> None:
    """Stop recording in a child that was forked during a window of its parent."""
    with contextlib.suppress(Exception):
        if find_accelerator() is None and len(profile.activities) == 1:
            torch.autograd.profiler._disable_profiler()
        else:  # stopping it would call the parent's accelerator driver
            torch.autograd._enable_record_function(False)
        torch.autograd.profiler._run_on_profiler_stop()


def end_past_destructors() -> None:
    """End this forked process with its own status before the destructors of libraries run.

    After any use of torch.profiler the destructors wait for ever for a thread that the child lacks (torch 2.13).
    Python's own exit runs before. Children of multiprocessing skip the destructors.
    """
    with contextlib.suppress(Exception):
        libc = ctypes.CDLL(None)
        libc.on_exit(libc._exit, None)  # of glibc alone


def is_main_thread() -> bool:
    """Return whether this is the thread on which windows are opened and ended."""
    return threading.current_thread() is threading.main_thread()


def is_in_backward() -> bool:
    """Return whether this thread computes gradients: torch would restart a profiler stopped there."""
    core: Any = getattr(sys.modules.get("torch"), "_C", None)
    task = getattr(core, "_current_graph_task_id", None)  # private: may be gone
    return task is not None and task() != -1


def blocker(torch: Any) -> str | None:
    """Return why no window can open now; None if one can. Does not check for other profilers."""
    if torch is None or not hasattr(torch, "profiler"):
        return "torch is not imported"
    if not is_main_thread():
        # A profiler that still records at the end of its thread crashes the process.
        return "the training is not on the main thread"
    if is_in_backward():
        return "steps end within a backward pass, where torch would start again what is stopped"
    if torch.compiler.is_compiling():
        return "torch.compile is compiling"
    accelerator = find_accelerator()
    if accelerator is not None and accelerator.is_capturing():
        return "a graph of the accelerator is being recorded"
    return _graphs_blocker(torch)


GRAPHS_SAFE_FROM: Final = 12, 6  # CUDA; before, torch's profiler may crash at its end if there are CUDA graphs


def _graphs_blocker(torch: Any) -> str | None:
    """Return why no window can open if the program has CUDA graphs and an early CUDA; None otherwise."""
    version = re.match(r"(\d+)\.(\d+)", str(getattr(getattr(torch, "version", None), CUDA.kind, None)))
    graph = getattr(getattr(torch, CUDA.kind, None), "CUDAGraph", None)
    if version is None or graph is None or (int(version[1]), int(version[2])) >= GRAPHS_SAFE_FROM:
        return None
    if not any(issubclass(type(each), graph) for each in gc.get_referrers(*_with_subclasses(graph))):
        return None
    return f"the program has CUDA graphs, with which a recording may crash before CUDA 12.6 (this is {version[0]})"


RECORDS: Final = "a profiler of the program's own records"
WARMS_UP: Final = "a profiler of the program's own warms up"
STARTS: Final = ("_prepare_profiler", "_enable_profiler")  # all of torch.autograd.profiler and torch.profiler call them


def active_profiler(torch: Any) -> str | None:
    """Return which profiler of the program is active on any thread; None without one."""
    if getattr(torch.autograd.profiler, "_is_profiler_enabled", False):
        return RECORDS
    inner, outer = torch.autograd.profiler.profile, torch.profiler.profile
    # Instances refer to their class. Searching referrers takes a tenth of the time of searching all objects.
    referrers = gc.get_referrers(*_with_subclasses(inner), *_with_subclasses(outer))
    return WARMS_UP if any(_warms_up(instance, type(instance), inner, outer) for instance in referrers) else None


def _warms_up(instance: Any, kind: type, inner: type, outer: type) -> bool:
    # Not isinstance, which may run code of the object.
    if issubclass(kind, inner):
        return getattr(instance, "entered", False) and getattr(instance, "kineto_results", None) is None
    if issubclass(kind, outer) and getattr(instance, "acc_events", False):  # reuses its inner profiler
        action = getattr(instance, "current_action", None)
        return getattr(action, "name", "") == "WARMUP" and getattr(instance, "profiler", None) is not None
    return False


def _with_subclasses(kind: type) -> Iterator[type]:
    yield kind
    subclasses: list[type] = kind.__subclasses__()
    for subclass in subclasses:
        yield from _with_subclasses(subclass)


def before_others_start(patches: Patches, torch: Any, give_way: Callable[[], None]) -> None:
    """Call ``give_way`` right before a profiler of the program starts or warms up, until ``patches`` are undone.

    Raises:
        AttributeError: this version of torch has no such place.
    """

    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        def start(*args: Any, **kwargs: Any) -> Any:
            give_way()
            return original(*args, **kwargs)

        return start

    for name in STARTS:
        patches.replace(torch.autograd.profiler, name, make)
    legacy = getattr(torch.autograd, "profiler_legacy", None)
    if hasattr(legacy, "_enable_profiler_legacy"):
        patches.replace(legacy, "_enable_profiler_legacy", make)
