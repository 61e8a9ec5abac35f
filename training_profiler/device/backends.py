"""The accelerator that a training uses, by what torch has for it.

torch is never imported here, and no accelerator is initialised: looking at one that is not in use yet would cost memory
on it, and its driver would not survive a fork.
"""

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final, Protocol

KINDS: Final = ("cuda", "xpu", "mtia")  # with those of torch's modules that say whether they were initialised


class Event(Protocol):
    """What torch.Event does; with timing."""

    def record(self) -> None:
        """Have the current stream of the current device note the time when it gets here."""

    def query(self) -> bool:
        """Return whether it has got here; never waits."""

    def elapsed_time(self, end_event: Any, /) -> float:
        """Return the ms from this event to ``end_event``, both of which have been reached."""


@dataclass(frozen=True, slots=True)
class Accelerator:
    """A kind of device that is in use; of several devices the current one counts."""

    kind: str  # as torch.device has it
    name: str  # of the current device; "" where it has none
    make_event: Callable[[], Event]
    current_index: Callable[[], int]
    is_capturing: Callable[[], bool]  # whether the current stream records a graph instead of doing the work
    synchronize: Callable[[], None]  # waits for all work of the current device


def find_accelerator() -> Accelerator | None:
    """Return the accelerator in use; None where there is none, or none yet."""
    torch = sys.modules.get("torch")
    for kind in _kinds(torch):
        module = getattr(torch, kind, None)
        if module is not None and _is_in_use(torch, kind, module):
            return _accelerator(torch, kind, module)
    return None


def _kinds(torch: Any) -> Iterator[str]:
    yield from KINDS
    own_kind = getattr(getattr(torch, "_C", None), "_get_privateuse1_backend_name", None)  # private: may be gone
    if own_kind is not None:
        yield own_kind()  # of a backend that is no part of torch
    yield "mps"


def _is_in_use(torch: Any, kind: str, module: Any) -> bool:
    if kind == "mps":  # has nothing to initialise; every torch has the module, but not each its is_available
        backend = getattr(getattr(torch, "backends", None), "mps", None)
        return backend is not None and bool(backend.is_available()) and module.current_allocated_memory() > 0
    is_initialized = getattr(module, "is_initialized", None)
    return is_initialized is not None and bool(is_initialized())  # False as well in a child that was forked after


def _accelerator(torch: Any, kind: str, module: Any) -> Accelerator:
    # torch.accelerator came with torch 2.6, and torch.Event before that does not do for each kind.
    if hasattr(torch, "accelerator"):
        synchronize = torch.accelerator.synchronize

        def make_event() -> Any:
            return torch.Event(device=kind, enable_timing=True)
    else:
        synchronize = module.synchronize

        def make_event() -> Any:
            return module.Event(enable_timing=True)

    is_single = module.device_count() == 1
    return Accelerator(
        kind=kind,
        name=str(module.get_device_name()) if hasattr(module, "get_device_name") else "",
        make_event=make_event,
        current_index=_first if is_single or not hasattr(module, "current_device") else module.current_device,
        is_capturing=getattr(module, "is_current_stream_capturing", _never),
        synchronize=synchronize,
    )


def _first() -> int:
    return 0


def _never() -> bool:
    return False
