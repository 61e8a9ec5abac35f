"""The program's own profilers, which are never disturbed.

Two of torch's at once empty the outer one and crash the process when it is exported (torch 2.13), also while one of
them only warms up. Nothing that anybody can ask says whether one does; so its object is looked for.
"""

import gc
from collections.abc import Callable, Iterator
from typing import Any, Final

from training_profiler.instrument.patching import Patches

RECORDS: Final = "a profiler of the program's own records"
WARMS_UP: Final = "a profiler of the program's own warms up"
STARTS: Final = ("_prepare_profiler", "_enable_profiler")  # all of torch.autograd.profiler and torch.profiler call them


def who_profiles(torch: Any) -> str | None:
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
