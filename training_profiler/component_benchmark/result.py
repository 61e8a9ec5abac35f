"""The result of a component benchmark: frozen data, in seconds."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

NOISY_FROM: Final = 0.1  # IQR over median; half of the measurements of a quiet machine lie within a few percent


@dataclass(frozen=True)
class Timing:
    """The duration of one execution, from many measurements."""

    median_s: float
    iqr_s: float | None = None  # between the quartiles; None with too few measurements
    measurements: int = 1
    runs_each: int = 1  # executions per measurement, which is their mean

    @property
    def spread(self) -> float | None:
        """Return the IQR as a part of the median, or None."""
        return self.iqr_s / self.median_s if self.iqr_s is not None and self.median_s > 0 else None

    @property
    def is_noisy(self) -> bool:
        """Return whether the measurements differ by more than a tenth."""
        return self.spread is not None and self.spread > NOISY_FROM


@dataclass(frozen=True)
class Component:
    """Equal calls of modules: same class, same shapes of parameters and inputs, same caller."""

    kind: str  # class
    names: tuple[str, ...]  # of the modules, as in named_modules()
    inputs: str  # shapes
    calls: int  # in one forward pass of the model
    parameters: int  # of one of the modules
    forward: Timing | None
    backward: Timing | None
    note: str | None  # why something was not measured, or how
    share_of_parent: float | None  # of the forward time of all calls of its parent
    share_of_model: float | None
    rest_s: float | None  # of one call: forward time outside of its children, by difference
    children: tuple["Component", ...] = ()

    @property
    def total_s(self) -> float | None:
        """Return the forward time of all calls in one pass of the model."""
        return None if self.forward is None else self.calls * self.forward.median_s


@dataclass(frozen=True)
class ComponentBenchmark:
    """A model, its passes and its components."""

    source: str  # MODULE:FACTORY
    kind: str
    parameters: int
    device: str
    dtype: str
    mode: str  # train, eval or mixed
    threads: int
    torch: str
    passes: Mapping[str, Timing]  # forward, forward + loss, backward, optimizer step: those that were measured
    loss: str  # name of the loss
    root: Component
    optimizer: str
    never_called: tuple[tuple[str, str], ...] = ()  # (name, class)
    notes: tuple[str, ...] = ()
