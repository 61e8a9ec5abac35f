"""The rules about a trace, and what they have in common."""

from dataclasses import dataclass
from typing import Final

from training_profiler.findings.registry import Need, Registry, Rule
from training_profiler.trace_analysis.checklist import memory_share
from training_profiler.trace_analysis.gaps import BLOCKING_COPY, LAUNCH_BOUND, PYTHON, SYNCHRONIZE
from training_profiler.trace_analysis.trace import Trace

TENSOR_CORES_SINCE: Final = 70  # compute capability of Volta


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceRule(Rule[Trace]):
    """A row: everything that claims and reports must know of a rule about traces."""

    is_measured: bool = False  # no saving means that nothing would be gained; for other rules, that it is not known
    work: str = ""  # of the device, that other rules claim as well: a faster product is also a faster forward pass
    has_conversions: bool = False  # it contains the work of ``is_conversion``, and is worth what it saves beyond that
    is_conversion: bool = False
    saves_at_least: bool = False  # convolutions in the other layout are often faster themselves


RULES: Final[Registry[Trace, TraceRule]] = Registry(TraceRule)
# A read that empties the queue can be behind these; what a loader or an allocation takes is theirs.
_AFTER_READ: Final = (LAUNCH_BOUND, PYTHON, SYNCHRONIZE, BLOCKING_COPY)


def can_compile(analysis: Trace) -> bool:
    """Return whether torch.compile could help: its kernels are not there yet, and the device can run them."""
    is_too_old = analysis.compute_capability is not None and analysis.compute_capability < TENSOR_CORES_SINCE
    is_compiled = analysis.is_compiled or any(row.name.startswith("triton_") for row in analysis.kernels.rows)
    return not is_too_old and not is_compiled


def has_backward(analysis: Trace) -> bool:
    """Return whether a backward pass launched work: without one, nothing is trained as far as the trace shows."""
    return analysis.phases.times_ns is not None


def has_optimizer(analysis: Trace) -> bool:
    """Return whether an optimizer launched kernels, not most of them for many tensors at once: those are fused."""
    phases = analysis.phases
    return phases.optimizer_kernels > 0 and 2 * phases.multi_tensor_kernels <= phases.optimizer_kernels


def is_pinned(analysis: Trace) -> bool:
    """Return whether all copies to the device are from pinned memory, as far as their names say so."""
    to_device = [copy.name for copy in analysis.copies if "-> Device" in copy.name and "HtoD" in copy.name]
    return bool(to_device) and all("Pinned" in name for name in to_device)


def pinning(analysis: Trace) -> str:
    """Return what makes copies come from pinned memory: the loader, if the trace shows one."""
    by_loader = "DataLoader(pin_memory=True)"
    return by_loader if analysis.waiting.data_names else f"pinned memory (Tensor.pin_memory() or {by_loader})"


def share_of_scope(analysis: Trace, ns: int) -> float | None:
    """Return a time as a share of all steps, or of the recording if no steps are marked; None if it has no length.

    Without the time that the recording held up the host: no part of it is the program's.
    """
    return min(1.0, ns / analysis.program_ns) if analysis.program_ns else None


def is_idle_for(analysis: Trace, ns: int, threshold: float) -> bool:
    """Return whether an idle time is more than a share of the time that the device had for the work of the scope.

    Before its first work a device is idle once, and not in each step, if the host runs ahead of it.
    """
    return bool(analysis.settled_ns) and ns > threshold * analysis.settled_ns


def computed_ns(analysis: Trace) -> int:
    """Return how long the device computed within the scope; of several devices the sum."""
    return sum(part.compute_ns for part in analysis.scope.parts)


def gap_ns(analysis: Trace, *causes: str) -> int:
    """Return the idle time of these causes within the scope; of several devices the mean."""
    return sum(analysis.idle_ns_by_cause.get(cause, 0) for cause in causes) // max(1, len(analysis.devices))


def reads_gap_ns(analysis: Trace, *causes: str) -> int:
    """Return the idle time that reads from the device caused, of these causes or of any that reads can have.

    A read is behind no more than the time that the host spent in reads.
    """
    chosen = [
        place
        for place in analysis.idle_times
        if place.follows_read and place.next_name  # after the last work there is none that a read could delay
    ]
    among = [cause for cause in _AFTER_READ if not causes or cause in causes]
    chosen_ns = sum(place.ns_of(*among) for place in chosen) // max(1, len(analysis.devices))
    return min(chosen_ns, analysis.waiting.read_ns)


DEVICE: Final[Need[Trace]] = Need("work of a device", lambda analysis: analysis.has_gpu)
WHOLE: Final[Need[Trace]] = Need("device work that is whole", lambda analysis: analysis.is_whole)
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
PHASES: Final[Need[Trace]] = Need("a backward pass on a device", lambda analysis: analysis.phases.times_ns is not None)
CAPABILITY: Final[Need[Trace]] = Need(
    "the compute capability of an NVIDIA device", lambda analysis: analysis.compute_capability is not None
)
MEMORY: Final[Need[Trace]] = Need("memory events (profile_memory=True)", lambda analysis: bool(analysis.memory))
RESERVED: Final[Need[Trace]] = Need(
    "memory events (profile_memory=True) and the size of the device's memory",
    lambda analysis: memory_share(analysis) is not None,
)
