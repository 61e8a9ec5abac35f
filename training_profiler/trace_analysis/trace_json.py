"""The figures of a trace as plain data, for ``training-profiler trace --json``; ms are floats of exact nanoseconds."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, Final

from training_profiler.trace_analysis.analysis import Analysis, AttributedGap
from training_profiler.trace_analysis.checklist import checks
from training_profiler.trace_analysis.device_activity import OneDevice, StepParts
from training_profiler.trace_analysis.gaps import LEAST_GAP_NS
from training_profiler.trace_analysis.operators import SORT_KEYS, sorted_by
from training_profiler.trace_analysis.rules.run_rules import THRESHOLDS, recommendations

NS_PER_MS: Final = 1_000_000
MOST_GAPS: Final = 5
MOST_KERNELS: Final = 10
MOST_NAME: Final = 160  # characters
OF_DEVICE: Final = (  # unknown where no work of a device was recorded
    "compute_union_ms",
    "comm_union_ms",
    "comm_exposed_ms",
    "kernel_sum_ms",
    "flash_kernel_ms",
    "attention_kernel_ms",
)
DIGITS: Final = 3  # of steps' lengths in ms


def ms(ns: float) -> float:
    """Return nanoseconds as milliseconds."""
    return ns / NS_PER_MS


def trace_data(
    found: Analysis, sort: str = SORT_KEYS[0], thresholds: Mapping[str, float] = THRESHOLDS
) -> dict[str, Any]:
    """Return all figures of a trace; unknown ones are None. ``sort`` is the order of the operators."""
    data = _figures(found, sort, thresholds)
    return data if found.has_gpu else data | dict.fromkeys(OF_DEVICE)


def _figures(found: Analysis, sort: str, thresholds: Mapping[str, float]) -> dict[str, Any]:
    kernels = found.kernels
    communication_ns = found.device.communication.total_ns
    return {
        "file": found.path.name,
        "gpu": _gpu_name(found),
        "rank": found.rank,
        "world": found.world_size,
        "n_events": found.events,
        "n_gpu_events": found.gpu_events,
        "n_kernels": kernels.count,
        "span_ms": ms(found.span_ns),
        "busy_ms": ms(found.device.busy.total_ns) if found.has_gpu else None,
        "idle_pct": 100 * (1 - found.device.busy.total_ns / found.span_ns) if found.has_gpu and found.span_ns else None,
        "steps": [[step.name, round(ms(step.wall_ns), DIGITS)] for step in found.steps],
        "gpu_util_in_steps_pct": _percent(found.utilization_in_steps),
        "step_parts_ns": _steps(found.steps, found.has_gpu),
        "devices": [_device(one) for one in found.devices],
        "step_variation_pct": _percent(found.step_variation),
        "compute_union_ms": ms(found.device.compute.total_ns),
        "comm_union_ms": ms(communication_ns),
        "comm_exposed_ms": ms(found.exposed_communication_ns),
        "overlap_pct": 100 * (1 - found.exposed_communication_ns / communication_ns) if communication_ns else None,
        "kernel_sum_ms": ms(kernels.total_ns),
        "kernels_lt10us": kernels.short_count,
        "kernels_lt10us_time_pct": _percent(kernels.short_share),
        "kernels_lt100us_time_pct": _percent(kernels.below_100us_share),
        "kernels_shorter_than_launch": kernels.launch_bound_count,
        "kernels_with_launch": kernels.launch_known_count,
        "flash_kernel_ms": ms(kernels.flash_ns),
        "attention_kernel_ms": ms(kernels.attention_ns),
        "tensorcore_named_pct": _percent(kernels.tensor_core_share),
        "unclassified_pct": _percent(kernels.unclassified_share),
        "kernel_kinds_ms": {kind: ms(ns) for kind, ns in kernels.by_kind_ns.items()},
        "largest_gaps_ms": [ms(ns) for ns in found.gap_lengths_ns[:MOST_GAPS]],
        "gaps_lt30us_ms": ms(sum(ns for ns in found.gap_lengths_ns if ns < LEAST_GAP_NS)),
        "gaps_ge30us_ms": ms(sum(ns for ns in found.gap_lengths_ns if ns >= LEAST_GAP_NS)),
        "gap_causes_ms": gap_causes(found),
        "gaps": [_gap(found, place) for place in found.gaps],
        "memcpy": {
            calls.name: {"n": calls.count, "ms": ms(calls.total_ns), "bytes": calls.bytes} for calls in found.copies
        },
        "syncs": {calls.name: {"n": calls.count, "ms": ms(calls.total_ns)} for calls in found.synchronizations},
        "allocations": {calls.name: {"n": calls.count, "ms": ms(calls.total_ns)} for calls in found.allocations},
        "dataloader": {"n": found.data_loading.count, "ms": ms(found.data_loading.total_ns)},
        "gpu_events_without_launch": kernels.without_launch,
        "top_kernels": [
            {"name": kernel.name[:MOST_NAME], "calls": kernel.calls, "ms": ms(kernel.total_ns), "kind": kernel.kind}
            for kernel in kernels.rows[:MOST_KERNELS]
        ],
        "streams": found.streams,
        "operators": [_operator(one, found.has_gpu) for one in sorted_by(found.operators, sort)],
        "communication": [asdict(one) for one in found.collectives],
        "memory": [asdict(one) for one in found.memory],
        "checklist": [check._asdict() for check in checks(found)],
        "recommendations": [asdict(one) for one in recommendations(found, thresholds)],
    }


def gap_causes(found: Analysis) -> dict[str, float]:
    """Return the ms of gaps of 30 us or more by their cause, the largest first."""
    causes: Counter[str] = Counter()
    for place in found.gaps:
        causes[place.gap.cause] += place.gap.length_ns
    return {cause: ms(ns) for cause, ns in causes.most_common()}


def _percent(share: float | None) -> float | None:
    return None if share is None else 100 * share


def _gpu_name(found: Analysis) -> str | None:
    return next((name for name in (*(one.name for one in found.devices), *found.device_names) if name), None)


def _steps(steps: Sequence[StepParts], has_gpu: bool = True) -> list[dict[str, Any]]:
    keys = ("compute", "exposed_communication", "exposed_copies", "idle")
    return [
        {"name": step.name, "wall": step.wall_ns}
        | {key: getattr(step, f"{key}_ns") if has_gpu else None for key in keys}
        for step in steps
    ]


def _device(one: OneDevice) -> dict[str, Any]:
    return {
        "device": one.index,
        "gpu": one.name or None,
        "busy_ms": ms(one.device.busy.total_ns),
        "gpu_util_in_steps_pct": _percent(one.utilization_in_steps),
        "step_parts_ns": _steps(one.steps),
    }


def _gap(found: Analysis, place: AttributedGap) -> dict[str, Any]:
    return {
        "device": place.gap.device,
        "at_ms": ms(place.gap.begin_ns - found.begin_ns),
        "ms": ms(place.gap.length_ns),
        "cause": place.gap.cause,
        "covered_pct": 100 * place.gap.part,
        "next": place.next_name[:MOST_NAME],
        "operator": place.operator[:MOST_NAME] or None,
        "section": place.section[:MOST_NAME] or None,
        "step": place.step or None,
    }


def _operator(one: Any, has_gpu: bool) -> dict[str, Any]:
    return {
        "name": one.name,
        "calls": one.calls,
        "host_self_ms": ms(one.host_self_ns),
        "host_total_ms": ms(one.host_total_ns),
        "device_self_ms": ms(one.device_self_ns) if has_gpu else None,
        "device_total_ms": ms(one.device_total_ns) if has_gpu else None,
        "section": one.section or None,
    }
