"""The rules about a trace, and what they have in common."""

from dataclasses import dataclass
from typing import Final

from training_profiler.diagnosis.rule import Need, Registry, Rule
from training_profiler.trace_analysis.trace import Trace


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceRule(Rule[Trace]):
    """A row: everything that claims and reports must know of a rule about traces."""

    is_measured: bool = False  # no saving means that nothing would be gained; for other rules, that it is not known
    work: str = ""  # of the device, that other rules claim as well: a faster product is also a faster forward pass
    has_conversions: bool = False  # it contains the work of ``is_conversion``, and is worth what it saves beyond that
    is_conversion: bool = False
    saves_at_least: bool = False  # convolutions in the other layout are often faster themselves


RULES: Final[Registry[Trace, TraceRule]] = Registry(TraceRule)
DEVICE: Final[Need[Trace]] = Need("work of a device", lambda analysis: analysis.has_gpu)
WHOLE: Final[Need[Trace]] = Need("device work that is whole", lambda analysis: analysis.is_whole)
DURATIONS: Final[Need[Trace]] = Need("device work that can be as long as recorded", lambda trace: trace.has_durations)
TIMED: Final = (DEVICE, DURATIONS)
AT_ONCE: Final[Need[Trace]] = Need("devices that do not take turns", lambda trace: not trace.is_one_system)
OPERATORS: Final[Need[Trace]] = Need("operators of the host", lambda analysis: bool(analysis.operators))
DIRECTIONS: Final[Need[Trace]] = Need(
    "the direction of copies", lambda analysis: analysis.transfers.exposed_ns is not None
)
BATCHES: Final[Need[Trace]] = Need(
    'waits for batches ("enumerate(DataLoader)" or a section data_loading)',
    lambda analysis: bool(analysis.waiting.data_names),
)
LOOP: Final[Need[Trace]] = Need(
    "steps (profiler.step()), or an annotation that recurs with the loop",
    lambda analysis: analysis.scope.repetitions > 0,
)
THREE_STEPS: Final[Need[Trace]] = Need(
    "three steps (profiler.step())", lambda analysis: analysis.step_variation is not None
)
CUDA_KERNELS: Final[Need[Trace]] = Need(
    "kernels of CUDA or HIP, whose names show whether they update many tensors at once",
    lambda analysis: analysis.has_graphs,
)
OPTIMIZER_KERNELS: Final[Need[Trace]] = Need(
    "kernels that an optimizer launched", lambda analysis: analysis.phases.optimizer_kernels > 0
)
PHASES: Final[Need[Trace]] = Need("a backward pass on a device", lambda analysis: analysis.has_backward)
CAPABILITY: Final[Need[Trace]] = Need(
    "the compute capability of an NVIDIA device", lambda analysis: analysis.compute_capability is not None
)
MEMORY: Final[Need[Trace]] = Need("memory events (profile_memory=True)", lambda analysis: bool(analysis.memory))
RESERVED: Final[Need[Trace]] = Need(
    "memory events (profile_memory=True) and the size of the device's memory",
    lambda analysis: analysis.memory_share is not None,
)
