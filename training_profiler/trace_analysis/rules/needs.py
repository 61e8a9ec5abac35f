"""What a rule about a trace must have to say anything; reports name what is missing."""

from typing import Final

from training_profiler.findings.registry import Need
from training_profiler.trace_analysis.checklist import memory_share
from training_profiler.trace_analysis.trace import Trace

DEVICE: Final[Need[Trace]] = Need("work of a device", lambda analysis: analysis.has_gpu)
WHOLE: Final[Need[Trace]] = Need("device work that is whole", lambda analysis: analysis.is_whole)
HOST: Final[Need[Trace]] = Need("operators of the host", lambda analysis: bool(analysis.operators))
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
OPTIMIZER: Final[Need[Trace]] = Need(
    "kernels that an optimizer launched", lambda analysis: analysis.phases.optimizer_kernels > 0
)
PHASES: Final[Need[Trace]] = Need("a backward pass on a device", lambda analysis: analysis.phases.times_ns is not None)
CAPABILITY: Final[Need[Trace]] = Need(
    "the compute capability of an NVIDIA device", lambda analysis: analysis.compute_capability is not None
)
MEMORY: Final[Need[Trace]] = Need("memory events (profile_memory=True)", lambda analysis: bool(analysis.memory))
RESERVED: Final[Need[Trace]] = Need(
    "memory events (profile_memory=True) and the size of the device's memory",
    lambda analysis: memory_share(analysis) is not None,
)
