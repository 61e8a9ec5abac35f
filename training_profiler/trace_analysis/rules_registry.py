"""The rules about a trace, and what they have in common."""

import operator
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Final

from training_profiler.base.units import NS_PER_S
from training_profiler.diagnosis.finding import Finding
from training_profiler.diagnosis.registry import Need, Registry, Rule
from training_profiler.trace_analysis.trace import Trace


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceRule(Rule[Trace]):
    """A row: everything that claims and reports must know of a rule about traces."""

    is_measured: bool = False  # no saving means that nothing would be gained; for other rules, that it is not known
    work: str = ""  # of the device, that other rules claim as well: a faster product is also a faster forward pass
    has_conversions: bool = False  # it contains the work of ``is_conversion``, and is worth what it saves beyond that
    is_conversion: bool = False
    saves_at_least: bool = False  # convolutions in the other layout are often faster themselves
    fires: Callable[[Any, float], bool] = operator.gt  # on the first of the evidence and the threshold

    def find(self, measured: Trace, threshold: float) -> Finding | None:
        """Return the finding where the first of its evidence exceeds ``threshold``, with that and the rule's code."""
        finding = super(TraceRule, self).find(measured, threshold)
        if finding is None:
            return None
        (name, value), *others = finding.evidence.items()
        evidence = {name: value, "threshold": threshold, **dict(others)}
        return replace(finding, code=self.code, evidence=evidence) if self.fires(value, threshold) else None


def found(message: str, fix: str, saved_ns: float = 0.0, **evidence: float | str) -> Finding:
    """Return what a rule has found, and its measured numbers, first the number that the threshold is about."""
    return Finding("", message, evidence, saved_ns / NS_PER_S, fix)


RULES: Final[Registry[Trace, TraceRule]] = Registry(TraceRule)
DEVICE: Final[Need[Trace]] = Need("work of a device", lambda trace: trace.has_gpu)
WHOLE: Final[Need[Trace]] = Need("device work that is whole", lambda trace: trace.is_whole)
DURATIONS: Final[Need[Trace]] = Need("device work that can be as long as recorded", lambda trace: trace.has_durations)
TIMED: Final = (DEVICE, DURATIONS)
AT_ONCE: Final[Need[Trace]] = Need("devices that do not take turns", lambda trace: not trace.is_one_system)
OPERATORS: Final[Need[Trace]] = Need("operators of the host", lambda trace: bool(trace.operators))
DIRECTIONS: Final[Need[Trace]] = Need("the direction of copies", lambda trace: trace.transfers.exposed_ns is not None)
BATCHES: Final[Need[Trace]] = Need(
    'waits for batches ("enumerate(DataLoader)" or a section data_loading)',
    lambda trace: bool(trace.waiting.data_names),
)
LOOP: Final[Need[Trace]] = Need(
    "steps (profiler.step()), or an annotation that recurs with the loop", lambda trace: trace.scope.repetitions > 0
)
THREE_STEPS: Final[Need[Trace]] = Need("three steps (profiler.step())", lambda trace: trace.step_variation is not None)
CUDA_KERNELS: Final[Need[Trace]] = Need(
    "kernels of CUDA or HIP, whose names show whether they update many tensors at once", lambda trace: trace.has_graphs
)
OPTIMIZER_KERNELS: Final[Need[Trace]] = Need(
    "kernels that an optimizer launched", lambda trace: trace.phases.optimizer_kernels > 0
)
PHASES: Final[Need[Trace]] = Need("a backward pass on a device", lambda trace: trace.has_backward)
CAPABILITY: Final[Need[Trace]] = Need(
    "the compute capability of an NVIDIA device", lambda trace: trace.compute_capability is not None
)
CLOCK: Final[Need[Trace]] = Need(
    "counters of the clock (torch.profiler's environment counters, newer than torch 2.13)",
    lambda trace: any(each.fall is not None for each in trace.counters),
)
MEMORY: Final[Need[Trace]] = Need("memory events (profile_memory=True)", lambda trace: bool(trace.memory))
RESERVED: Final[Need[Trace]] = Need(
    "memory events (profile_memory=True) and the size of the device's memory",
    lambda trace: trace.memory_share is not None,
)
