"""The parts that pipeline and session share."""

from dataclasses import dataclass
from typing import Protocol

from training_profiler.aggregation.accumulator import Accumulator
from training_profiler.aggregation.run import RunSums
from training_profiler.instrumentation.instrumentation import Instrumentation
from training_profiler.ranks.exchange import RankExchange
from training_profiler.ranks.identity import Rank
from training_profiler.recording.data_loader import LoaderRegistry
from training_profiler.recording.recorder import Recorder
from training_profiler.runtime.hang_watch import HangWatch
from training_profiler.runtime.health import ProfilerHealth
from training_profiler.runtime.outputs import Outputs
from training_profiler.runtime.progress import TrainingProgress
from training_profiler.runtime.samplers import Samplers
from training_profiler.safety.cost_budget import CostBudget
from training_profiler.safety.fault_guard import FaultGuard
from training_profiler.settings.settings import Settings
from training_profiler.torch_capture.controller import Captures


class Component(Protocol):
    """A part of a session; ``runtime/wiring.py`` constructs it, and the session calls it in the order of its parts."""

    def start(self) -> None:
        """Start working at the start of the run."""

    def reconfigure(self, settings: Settings) -> None:
        """Apply new settings."""

    def close(self, ended_by: str | None) -> None:
        """Stop working and hand over what is left.

        Args:
            ended_by: signal or exception that ends the run; None if it ends normally.
        """

    def after_fork_in_child(self) -> None:
        """Discard all state without output: the run belongs to the parent process."""

    def notes(self) -> list[str]:
        """Return sentences for the report's "Profiler health"."""


@dataclass(frozen=True)
class Parts:
    """The parts of one session, as ``runtime/wiring.py`` has made them."""

    recorder: Recorder
    instrumentation: Instrumentation  # infers sections and steps of an unmodified training
    guard: FaultGuard
    health: ProfilerHealth
    budget: CostBudget
    rank: Rank
    progress: TrainingProgress
    accumulator: Accumulator
    sums: RunSums
    loaders: LoaderRegistry
    exchange: RankExchange
    outputs: Outputs
    samplers: Samplers
    captures: Captures
    hang_watch: HangWatch
