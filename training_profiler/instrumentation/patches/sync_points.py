"""Moments that all ranks know: barriers of the program, and exchanges of gradients.

Nobody leaves one before all have come, which tells how the clocks of machines stand against each other.
"""

import functools
import inspect
import threading
import time
from collections.abc import Callable
from typing import Any, Final, NamedTuple

KEPT: Final = 16  # of a kind: the first, and at most as many of all

# Those in which the host waits for what all ranks give; of a barrier by whatever backend, else where tensors are the
# processor's own.
BY_HOST: Final = ("all_gather_object", "barrier", "monitored_barrier")
BY_TENSORS: Final = (
    "all_gather",
    "all_gather_into_tensor",
    "all_gather_single",
    "all_reduce",
    "reduce_scatter_single",
    "reduce_scatter_tensor",
)


class SyncPoint(NamedTuple):
    """One of them; ns of the wall clock."""

    number: int  # of its kind: which are kept depends on it alone
    key: str  # the same on every rank
    enter_ns: int
    leave_ns: int


class SyncPoints:
    """A bounded list of them; the same ones are kept on every rank."""

    def __init__(self) -> None:
        self._kept: dict[str, list[SyncPoint]] = {}
        self._every: dict[str, int] = {}  # kind -> of how many one is kept, a power of two
        self._calls = 0
        self._thread: int | None = None
        self._is_inside = False

    @property
    def seen(self) -> list[tuple[str, int, int]]:
        """Return (key, enter, leave), ns of the wall clock."""
        return [one[1:] for kept in list(self._kept.values()) for one in kept]

    def add(self, kind: str, number: int, key: str, enter_ns: int, leave_ns: int) -> None:
        """Add the meeting ``number`` of a kind, counted from 0, unless it is one of those that are left out."""
        every = self._every.get(kind, 1)
        while number >= KEPT * every:
            every *= 2
        if number >= KEPT and number % every:
            return
        self._every[kind] = every
        before = [one for one in self._kept.get(kind, ()) if one.number < KEPT or one.number % every == 0]
        self._kept[kind] = [*before, SyncPoint(number, key, enter_ns, leave_ns)]

    def call_begins(self) -> int | None:
        """Count a call in which all ranks meet; return its number, None where it is part of another.

        All ranks make these calls in one order, but not those of several threads: the first thread's alone are counted.
        """
        ident = threading.get_ident()
        if self._thread is None:
            self._thread = ident
        if self._is_inside or self._thread != ident:
            return None
        self._is_inside = True
        self._calls += 1
        return self._calls - 1

    def call_ends(self, number: int, enter_ns: int | None) -> None:
        """Note that the call is over; ``enter_ns`` is None where it has failed."""
        self._is_inside = False
        if enter_ns is not None:
            self.add("all", number, f"all:{number}", enter_ns, time.time_ns())


def noted(
    meetings: Callable[[], SyncPoints], module: Any, name: str, original: Any, is_compiling: Callable[[], bool]
) -> Any:
    """Return ``original``, collective ``name`` of torch's ``module``, as one whose calls are noted where ranks meet."""
    takes = _argument_of(original)
    if takes is None:
        return original

    def is_met(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        group = takes("group", args, kwargs)
        if takes("async_op", args, kwargs) or not (group is None or group is module.GroupMember.WORLD):
            return False
        if name in BY_HOST:
            return True
        tensor = args[0] if args else next(iter(kwargs.values()))
        tensor = tensor[0] if isinstance(tensor, (list, tuple)) else tensor
        return bool(tensor.is_cpu and tensor.numel())

    @functools.wraps(original)
    def meet(*args: Any, **kwargs: Any) -> Any:
        if is_compiling():
            return original(*args, **kwargs)
        try:
            here = meetings()
            number = here.call_begins() if is_met(args, kwargs) else None
        except Exception:  # arguments that torch itself will not like
            number = None
        if number is None:
            return original(*args, **kwargs)
        enter_ns: int | None = time.time_ns()
        try:
            return original(*args, **kwargs)
        except BaseException:
            enter_ns = None
            raise
        finally:
            here.call_ends(number, enter_ns)

    return meet


def _argument_of(function: Any) -> Callable[[str, tuple[Any, ...], dict[str, Any]], Any] | None:
    """Return what finds an argument of ``function`` by its name; None where its parameters are not known."""
    places = places_of(function)
    if "group" not in places:
        return None

    def argument(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if name in kwargs:
            return kwargs[name]
        place = places.get(name, len(args))
        return args[place] if place < len(args) else None

    return argument


def places_of(function: Any) -> dict[str, int]:
    """Return which parameter is at which place; nothing where that is not known."""
    try:
        return {name: place for place, name in enumerate(inspect.signature(function).parameters)}
    except (TypeError, ValueError):
        return {}
