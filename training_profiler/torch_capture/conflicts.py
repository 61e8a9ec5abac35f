"""The program's own profilers, which are never disturbed.

Two of torch's at once empty the outer one and crash the process when it is exported (torch 2.13), also while one of
them only warms up. Nothing that anybody can ask says whether one does; so its object is looked for.
"""

import contextlib
import ctypes
import gc
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any, Final

from training_profiler.device.backends import find_accelerator
from training_profiler.instrumentation.patching import Patches


def stop_in_child(torch: Any, profile: Any) -> None:
    """Record no more in a child that was forked in the middle of a window; the window is its parent's."""
    with contextlib.suppress(Exception):
        if find_accelerator() is None and len(profile.activities) == 1:
            torch.autograd.profiler._disable_profiler()
        else:  # to stop it would ask the accelerator's driver, which is the parent's
            torch.autograd._enable_record_function(False)
        torch.autograd.profiler._run_on_profiler_stop()


def end_past_destructors() -> None:
    """Have this forked process end, with its own status, before libraries take down what they made in its parent.

    After any use of torch.profiler, the program's own too, they wait there for ever, for a thread that the child does
    not have (torch 2.13). Python's own end comes before; children of multiprocessing never come so far.
    """
    with contextlib.suppress(Exception):
        libc = ctypes.CDLL(None)
        libc.on_exit(libc._exit, None)  # of glibc alone


def is_main_thread() -> bool:
    """Return whether this is the thread on which windows are opened and ended."""
    return threading.current_thread() is threading.main_thread()


def is_in_backward() -> bool:
    """Return whether gradients are being computed on this thread: what is stopped there torch starts again after."""
    core: Any = getattr(sys.modules.get("torch"), "_C", None)
    task = getattr(core, "_current_graph_task_id", None)  # private: may be gone
    return task is not None and task() != -1


def blocker(torch: Any) -> str | None:
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


RECORDS: Final = "a profiler of the program's own records"
WARMS_UP: Final = "a profiler of the program's own warms up"
STARTS: Final = ("_prepare_profiler", "_enable_profiler")  # all of torch.autograd.profiler and torch.profiler call them


def active_profiler(torch: Any) -> str | None:
    """Return which profiler of the program is at work, on whatever thread; None where there is none."""
    if getattr(torch.autograd.profiler, "_is_profiler_enabled", False):
        return RECORDS
    inner, outer = torch.autograd.profiler.profile, torch.profiler.profile
    # What refers to a class are its instances among others: a tenth of the time that looking at all objects takes.
    found = gc.get_referrers(*_with_subclasses(inner), *_with_subclasses(outer))
    return WARMS_UP if any(_warms_up(one, type(one), inner, outer) for one in found) else None


def _warms_up(one: Any, kind: type, inner: type, outer: type) -> bool:
    # By the type and not isinstance, which may run code of the object's.
    if issubclass(kind, inner):
        return getattr(one, "entered", False) and getattr(one, "kineto_results", None) is None
    if issubclass(kind, outer) and getattr(one, "acc_events", False):  # uses its inner one again
        action = getattr(one, "current_action", None)
        return getattr(action, "name", "") == "WARMUP" and getattr(one, "profiler", None) is not None
    return False


def _with_subclasses(kind: type) -> Iterator[type]:
    yield kind
    subclasses: list[type] = kind.__subclasses__()
    for one in subclasses:
        yield from _with_subclasses(one)


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
