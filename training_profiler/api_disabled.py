"""The public API while profiling is off: the same names without any effect."""

from __future__ import annotations

from training_profiler.recording.dynamo import tracing_test
from training_profiler.switch import SWITCH, is_switched_on

TYPE_CHECKING = False  # importing typing, contextlib and warnings would dominate the import time
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, TypeVar

    from training_profiler.snapshot.snapshot import Snapshot

    F = TypeVar("F", bound=Callable[..., Any])
    T = TypeVar("T")


class _Nothing:
    """The one context manager and decorator that every call returns.

    Its ``__enter__`` and ``__exit__`` are C functions that ignore what they are given: without a
    Python frame an empty section costs less than a ``nullcontext`` (benchmarks/section_cost.py).
    """

    __slots__ = ()
    __enter__: Callable[[], Any] = [].copy
    __exit__: Callable[..., Any] = "".format  # returns "", which is false: exceptions pass

    # Without brackets the decorator replaces the user's function and gets its arguments.
    def __call__(self, *functions: Any, **named: Any) -> Any:
        if len(functions) == 1 and not named and callable(functions[0]):
            return functions[0]
        raise TypeError(
            "profile_section decorates one function, and was given other arguments; "
            'was the name forgotten? example: @profile_section("forward_pass")'
        )


_NOTHING: Any = _Nothing()


def _set_tracing_test(test: Callable[[], bool]) -> None:
    global _is_tracing
    _is_tracing = test


_is_tracing = tracing_test(_set_tracing_test)


def profile_section(name: str) -> Any:
    """Do nothing; see the live ``profile_section``."""
    # dynamo supports nullcontext, but no shared object.
    if _is_tracing():
        from contextlib import nullcontext

        return nullcontext()
    return _NOTHING


def start_training_profiling(log_every: int | None = None, **settings: Any) -> None:
    """Do nothing. Warn if the variable was set after the import."""
    if is_switched_on():
        import warnings

        from training_profiler.errors import ProfilerWarning

        warnings.warn(
            f"{SWITCH} was set after training_profiler was imported, so profiling stays off; "
            f"set it before the import, e.g. in the shell: {SWITCH}=1 python train.py",
            ProfilerWarning,
            stacklevel=2,
        )


def stop_training_profiling() -> None:
    """Do nothing."""


def profile_step() -> None:
    """Do nothing."""


def profile_epoch(n: int) -> Any:
    """Return a context that does nothing."""
    return _NOTHING


def profile_phase(phase: str) -> Any:
    """Return a context that does nothing."""
    return _NOTHING


def profile_dataloader(loader: T, name: str | None = None, proportion: float | None = None) -> T:
    """Return ``loader`` itself."""
    return loader


def is_profiling_enabled() -> bool:
    """Return False."""
    return False


def snapshot() -> Snapshot:
    """Return an empty snapshot."""
    from training_profiler.snapshot.snapshot import Snapshot

    return Snapshot()
