"""The parts that pipeline and session share."""

from dataclasses import dataclass

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
from training_profiler.torch_capture.controller import Captures


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
