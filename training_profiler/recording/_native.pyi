"""The recorder in C (native/), which is built where there is a compiler."""

from collections.abc import Callable
from typing import Any

INTERFACE: int

def Events() -> list[int]:  # noqa: N802 - a class, which serves as a list does
    """Return events without any, of which a slice lends its memory to numpy."""

def event_writer(
    events: list[int], clock: Callable[[], int] | None, code: int, buffer: Any, flush: Callable[[], None] | None
) -> Callable[..., None]:
    """Return a function that appends the clock's time and ``code``; without a clock, the system's monotonic one.

    With a buffer it is an ``__exit__``, and calls ``flush`` when ``events`` has more integers than ``buffer.flush_at``.
    """

class SectionLookup:
    """Finds the section of a name on the calling thread.

    Args:
        missing: is called with a name that is not found, and returns its section.
    """

    def __init__(self, missing: Callable[[Any], Any]) -> None: ...
    def find(self, name: Any) -> Any:
        """Return the section of ``name`` on the calling thread."""

    def use(self, sections: dict[Any, Any]) -> None:
        """Find the sections of the calling thread in ``sections`` from now on."""

    def drop(self, sections: dict[Any, Any]) -> None:
        """Let go of the sections of a thread that has ended."""

class UsualCalls:
    """Records nearly every call of a training under way; see instrumentation/fronts.py."""

    def use(self, fields: type, parts: tuple[Any, ...]) -> None:
        """Record the calls of a loop detector: the objects that native/fronts.c names.

        ``fields`` is the class that has the attributes found by their number.
        """

    def forget(self) -> None:
        """Record none."""

class Front:
    """Makes and records calls of ``patch``; see ``Fronts.offer``."""

    def __init__(
        self,
        kind: int,
        usual: UsualCalls,
        original: Any,
        patch: Any,
        ended: Callable[..., None] | None,
        on_error: Callable[[Exception], None],
        method_type: type,
    ) -> None: ...
    def __call__(self, *args: Any, **kwargs: Any) -> Any: ...

class HandoverLock:
    """A closed lock on which a thread sleeps; when its sleep ends, the main thread hands over the GIL to it."""

    def acquire(self, blocking: bool, timeout: float, /) -> bool:
        """Sleep until ``release`` or for ``timeout`` seconds; return whether it was released."""

    def release(self) -> None:
        """Wake the thread that sleeps, once; from then on nothing is handed over.

        Raises:
            RuntimeError: it was released before.
        """

    def waited_ns(self) -> int:
        """Return how long the main thread has waited for the sleeping thread to take over, in ns."""

    def was_handed_over(self) -> bool:
        """Return whether the main thread ran Python when the latest sleep ended.

        False: it had given up the GIL by itself, in a call that waits or computes without it.
        """
