"""The public functions while profiling is off. Never: import what only an enabled run needs."""

from __future__ import annotations

from training_profiler.base.switch import SWITCH, is_switched_on
from training_profiler.recording.context_type import SectionBase, tracing_test

TYPE_CHECKING = False  # importing typing, contextlib and warnings would dominate the import time
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from typing import Any, TypeVar

    from training_profiler.model.snapshot import Snapshot

    T = TypeVar("T")


class Section(SectionBase):
    """The one section that every call returns.

    Its ``__enter__`` and ``__exit__`` are C functions without an effect: without a Python frame an empty section costs
    less than a ``nullcontext`` (benchmarks/section_cost.py).
    """

    __slots__ = ()
    __module__ = "training_profiler"
    __enter__: Callable[[], Any] = [].clear
    __exit__: Callable[..., Any] = memoryview(b"").__exit__  # takes any arguments and returns None

    def __reduce__(self) -> tuple[Any, ...]:
        return _nothing, ()


def _nothing() -> Any:
    return _NOTHING


class Context:
    """What epochs and phases return: a context without an effect, which remembers how it was made for pickle."""

    __slots__ = ("__weakref__", "_made_by")
    __module__ = "training_profiler"

    def __init__(self, function: Any, argument: Any) -> None:
        self._made_by = function, (argument,)

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: Any = None, error: Any = None, traceback: Any = None) -> None:
        pass

    def __reduce__(self) -> Any:
        return self._made_by


_NOTHING: Any = Section()


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


def start_training_profiling(
    log_every: int | None = None,
    *,
    format: str | None = None,
    dir: str | None = None,
    stream: str | None = None,
    warmup: int | str | None = None,
    flush_s: float | None = None,
    max_names: int | None = None,
    sample_hz: int | None = None,
    timing: str | None = None,
    monitor_s: float | None = None,
    flops: bool | None = None,
    sinks: str | Sequence[str] | None = None,
    sinks_optional: bool | None = None,
    log_scalars_every_n_steps: int | None = None,
    thresholds: Mapping[str, float] | None = None,
    checklist: bool | None = None,
    html: bool | None = None,
    history: bool | None = None,
    rank_wait_s: float | None = None,
    capture: str | None = None,
    prometheus_port: int | str | None = None,
    name: str | None = None,
    gpu_hour_price: str | float | None = None,
    for_: str | None = None,
    stop_when_sure: bool | None = None,
) -> None:
    """Do nothing. Warn if the variable was set after the import."""
    if is_switched_on():
        import warnings

        from training_profiler.base.errors import ProfilerWarning

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
    return Context(profile_epoch, n)


def profile_phase(phase: str) -> Any:
    """Return a context that does nothing."""
    return Context(profile_phase, phase)


def profile_dataloader(loader: Iterable[T], name: str | None = None, proportion: float | None = None) -> Iterable[T]:
    """Return ``loader`` itself."""
    return loader


def is_profiling_enabled() -> bool:
    """Return False."""
    return False


def snapshot() -> Snapshot:
    """Return an empty snapshot."""
    from training_profiler.model.snapshot import Snapshot

    return Snapshot()
