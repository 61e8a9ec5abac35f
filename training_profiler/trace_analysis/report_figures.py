"""The figures of a trace: plain data for ``--json`` (ms are floats of exact nanoseconds), and how text writes them."""

import re
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from operator import attrgetter
from typing import Any, Final, TypeVar

from training_profiler.base.table import table, with_details, wrapped
from training_profiler.base.units import BYTES_PER_MIB, NS_PER_MS, NS_PER_US, bytes_text
from training_profiler.diagnosis.finding import Finding
from training_profiler.trace_analysis import rules_findings
from training_profiler.trace_analysis.code_places import TracedPlaces
from training_profiler.trace_analysis.critical_path import Jump, Link, TimeChange, critical_path, outcomes
from training_profiler.trace_analysis.events import PARTS, CallTimes, StepParts
from training_profiler.trace_analysis.gaps import LEAST_GAP_NS, Gap
from training_profiler.trace_analysis.operators import SORT_KEYS, Rate, sorted_by
from training_profiler.trace_analysis.path_graph import Graph
from training_profiler.trace_analysis.rules_findings import THRESHOLDS, saving_ms
from training_profiler.trace_analysis.trace import Trace

SCHEMA: Final = 2  # of `--json`; 1 had no such key, and called a saving worth_ms and a fix remedy
MOST_GAPS: Final = 5
MOST_KERNELS: Final = 10
MOST_NAME: Final = 160  # characters
# Unknown without recorded device work.
OF_DEVICE: Final = "compute_union_ms comm_union_ms comm_exposed_ms kernel_sum_ms flash_kernel_ms attention_kernel_ms"
DIGITS: Final = 3  # of steps' lengths in ms


def in_ms(ns: float) -> float:
    """Return nanoseconds as milliseconds."""
    return ns / NS_PER_MS


def data_of(item: Any, fields: str) -> dict[str, Any]:
    """Return values of an item for JSON or a table; None for an empty text.

    Args:
        item: the record.
        fields: the names of its fields, or ``key=field`` where the key has another name. That of ``key_ms`` is
            ``key_ns``, as that of ``key_us``, and that of ``key_pct`` a share.
    """
    data = {}
    for key, _, field in (word.partition("=") for word in fields.split()):
        value = attrgetter(field or (f"{key[:-3]}_ns" if key.endswith(("_ms", "_us")) else key))(item)
        if key == "ms" or key.endswith(("_ms", "_us")):
            value /= NS_PER_US if key.endswith("_us") else NS_PER_MS
        elif key.endswith("_pct"):
            value = _percent(value)
        data[key] = None if value == "" else value
    return data


def trace_data(
    analysis: Trace, sort: str = SORT_KEYS[0], thresholds: Mapping[str, float] = THRESHOLDS
) -> dict[str, Any]:
    """Return all figures of a trace; unknown ones are None. ``sort`` is the order of the operators."""
    has_gpu = analysis.has_gpu
    calls = {
        "syncs": analysis.synchronizations,
        "allocations": analysis.allocations,
        "host_communication": analysis.host_collectives,
    }
    kernels = data_of(
        analysis.kernels,
        "kernel_sum_ms=total_ns kernels_lt10us=short_count kernels_lt10us_time_pct=short_share "
        "kernels_lt100us_time_pct=below_100us_share kernels_shorter_than_launch=launch_bound_count "
        "kernels_with_launch=launch_known_count flash_kernel_ms=flash_ns attention_kernel_ms=attention_ns "
        "tensorcore_named_pct=tensor_core_share unclassified_pct=unclassified_share",
    )
    data = {"schema": SCHEMA} | _whole_data(analysis) | kernels
    data |= {
        "kernel_kinds_ms": {kind: in_ms(ns) for kind, ns in analysis.kernels.by_kind_ns.items()},
        "largest_gaps_ms": [in_ms(ns) for ns in analysis.gap_lengths_ns[:MOST_GAPS]],
        "gaps_lt30us_ms": in_ms(sum(ns for ns in analysis.gap_lengths_ns if ns < LEAST_GAP_NS)),
        "gaps_ge30us_ms": in_ms(sum(ns for ns in analysis.gap_lengths_ns if ns >= LEAST_GAP_NS)),
        "gap_causes_ms": gap_causes(analysis),
        "gaps": [_gap(place) for place in analysis.gaps],
        "memcpy": {copy.name: data_of(copy, "n=count ms=total_ns bytes") for copy in analysis.copies},
        **{what: {row.name: data_of(row, "n=count ms=total_ns") for row in of} for what, of in calls.items()},
        "dataloader": data_of(analysis.data_loading, "n=count ms=total_ns"),
        "gpu_events_without_launch": analysis.kernels.without_launch,
        "top_kernels": [
            {"name": kernel.name[:MOST_NAME]} | data_of(kernel, "calls ms=total_ns kind")
            for kernel in analysis.kernels.rows[:MOST_KERNELS]
        ],
        "streams": analysis.streams,
        "operators": [
            {"name": operator.name} | times_data(operator, has_gpu) | {"section": operator.section or None}
            for operator in sorted_by(analysis.operators, sort)
        ],
        "communication": [asdict(collective) for collective in analysis.collectives],
        "memory": [asdict(memory) for memory in analysis.memory],
        **_judgement(analysis, thresholds),
        "counters": counter_data(analysis),
        "roofline": [rate_data(rate) for rate in analysis.roofline.rates],
        "critical_path": path_data(analysis.graph),
        "bus_bandwidth": bandwidth_data(analysis),
        "code": {kind: place_data(kind, analysis) for kind in ("sections", "modules", "lines")}
        | {"sampled_lines": [asdict(line) for line in analysis.code.sampled]},
    }
    return data if has_gpu else data | dict.fromkeys(OF_DEVICE.split())


def _whole_data(analysis: Trace) -> dict[str, Any]:
    """Return the figures of the file, of its steps and of its devices."""
    busy_ns, communication_ns = analysis.device.busy.total_ns, analysis.device.communication.total_ns
    is_known = analysis.has_gpu and analysis.span_ns
    data = data_of(
        analysis,
        "file=path.name rank world=world_size n_events=events n_gpu_events=gpu_events n_kernels=kernels.count span_ms "
        "gpu_util_in_steps_pct=utilization_in_steps step_variation_pct=step_variation "
        "compute_union_ms=device.compute.total_ns comm_union_ms=device.communication.total_ns "
        "comm_exposed_ms=exposed_communication_ns",
    )
    return data | {
        "gpu": gpu_name(analysis),
        "busy_ms": in_ms(busy_ns) if analysis.has_gpu else None,
        "idle_pct": 100 * (1 - busy_ns / analysis.span_ns) if is_known else None,
        "steps": [[step.name, round(in_ms(step.wall_ns), DIGITS)] for step in analysis.steps],
        "step_parts_ns": _steps(analysis.steps, analysis.has_gpu),
        "devices": [
            data_of(
                device, "device=index gpu=name busy_ms=device.busy.total_ns gpu_util_in_steps_pct=utilization_in_steps"
            )
            | {"step_parts_ns": _steps(device.steps)}
            for device in analysis.devices
        ],
        "overlap_pct": 100 * (1 - analysis.exposed_communication_ns / communication_ns) if communication_ns else None,
    }


def path_data(graph: Graph | str | None) -> dict[str, Any] | None:
    """Return the path and what changes would bring, or why there is none; None if it was not asked for."""
    if graph is None or isinstance(graph, str):
        return None if graph is None else {"why_not": graph}
    path = critical_path(graph)
    of_ranks = {
        "ranks_ms": {rank: in_ms(ns) for rank, ns in path.ranks_ns.items()},
        "jumps": [jump_data(jump) for jump in path.jumps],
    }
    return (of_ranks if graph.is_of_ranks else {}) | {
        "why_not": None,
        "steps": path.steps or None,
        **data_of(path, "wall_ms earlier_ms recording_ms"),
        "kinds_ms": {kind: in_ms(ns) for kind, ns in path.kinds_ns.items()},
        "links": [link_data(link) for link in path.links],
        "what_if": [outcome_data(*found) for found in outcomes(graph, path)],
    }


def link_data(link: Link) -> dict[str, Any]:
    """Return a link of the critical path."""
    data = {"kind": link.kind, "name": link.name[:MOST_NAME] or None, "ms": in_ms(link.ns)}
    return data if link.rank < 0 else {"rank": link.rank} | data


def jump_data(jump: Jump) -> dict[str, Any]:
    """Return how often the path leads from one rank to another at a collective."""
    return {
        "collective": jump.name[:MOST_NAME],
        "waiting_rank": jump.waiting,
        "waited_for_rank": jump.waited_for,
        "times": jump.count,
    }


def outcome_data(change: TimeChange, wall_ns: int) -> dict[str, Any]:
    """Return what a change brings."""
    return {"change": change.what, "name": change.name[:MOST_NAME] or None, "wall_ms": in_ms(wall_ns)}


def gap_causes(analysis: Trace) -> dict[str, float]:
    """Return the ms of gaps of 30 us or more by their cause, the largest first."""
    causes: dict[str, float] = defaultdict(float)
    for place in analysis.gaps:
        for cause, share in place.shares:
            causes[cause] += share * place.length_ns
    return {cause: in_ms(ns) for cause, ns in sorted(causes.items(), key=lambda item: -item[1])}


def _percent(share: float | None) -> float | None:
    return None if share is None else 100 * share


def gpu_name(analysis: Trace) -> str | None:
    """Return the name of the first device that has one."""
    return next(
        (name for name in (*(device.name for device in analysis.devices), *analysis.device_names) if name), None
    )


def _steps(steps: Sequence[StepParts], has_gpu: bool = True) -> list[dict[str, Any]]:
    return [
        {"name": step.name, "wall": step.wall_ns}
        | {key.removesuffix("_ns"): getattr(step, key) if has_gpu else None for key in PARTS}
        for step in steps
    ]


def _judgement(analysis: Trace, thresholds: Mapping[str, float]) -> dict[str, Any]:
    return {
        "checklist": [check._asdict() for check in rules_findings.checks(analysis)],
        "recommendations": [
            {
                "code": finding.code,
                "finding": finding.message,
                "evidence": dict(finding.evidence),
                "saving_ms": saving_ms(finding),
                "fix": finding.fix,
            }
            for finding in rules_findings.recommendations(analysis, thresholds)
        ],
        "not_checked": rules_findings.not_checked(analysis),
        "recording_ms": in_ms(analysis.recording_ns) if analysis.has_gpu else None,
        "not_recorded_ms": in_ms(analysis.unseen_ns) if analysis.has_gpu else None,
        "idle_at_ends": [_gap(place) for place in analysis.edges],
        "doubts": [{"code": code, "message": message} for code, message in analysis.doubts.items()],
        "notes": list(analysis.notes),
        "shares_of": {
            "what": "steps" if analysis.scope.is_steps else "recording",
            "ms": in_ms(analysis.scope.wall_ns),
            "recurs": analysis.scope.recurs or None,
            "times": analysis.scope.repetitions or None,
        },
        "parallelism": list(analysis.parallelism),
        "pace_variation_pct": _percent(analysis.pace_variation),
    }


def _gap(place: Gap) -> dict[str, Any]:
    named = data_of(place, "next=next_name operator section step module line")
    return data_of(place, "device at_ms ms=length_ns cause covered_pct=share") | {
        **{key: name and (name if key == "step" else name[:MOST_NAME]) for key, name in named.items()},
        "module_pct": 100 * place.module_part if place.module else None,
        "line_pct": 100 * place.line_part if place.line else None,
        "stall_by": place.stall_by or None,
    }


def rate_data(rate: Rate) -> dict[str, Any]:
    """Return what an operator achieves with the same inputs."""
    fields = (
        "name kind shapes dtype device calls device_ms flops least_bytes=bytes tflop_per_s=tflops tb_per_s=tb_s "
        "peak_tflop_per_s=peak_tflops peak_tb_per_s=peak_tb_s bound of_roof_pct=share_of_roof is_above_roof"
    )
    return data_of(rate, fields) | {"lacks": list(rate.lacks)}


def place_data(kind: str, analysis: Trace) -> list[dict[str, Any]]:
    """Return the times of all places of one kind: sections, modules or lines."""
    places: TracedPlaces = getattr(analysis.code, kind)
    return [
        {"name": place.name}
        | times_data(place, analysis.has_gpu)
        | {"gaps_ms": in_ms(place.idle_ns) if analysis.has_gpu else None}
        for place in places.rows
    ]


def counter_data(analysis: Trace) -> list[dict[str, Any]]:
    """Return what each counter says."""
    fields = "counter=name device samples least mean most busy=busy_mean gaps=idle_mean"
    return [data_of(each, fields) for each in analysis.counters]


def bandwidth_data(analysis: Trace) -> list[dict[str, Any]]:
    """Return the bus bandwidth of each kind of collective."""
    fields = (
        "collective=kind message_bytes group_size runs=count total_ms mean_gb_per_s=mean_gb_s best_gb_per_s=best_gb_s "
        "link_gb_per_s=link_gb_s best_of_link_pct=share_of_link is_above_link"
    )
    return [data_of(row, fields) | {"lacks": ", ".join(row.lacks) or None} for row in analysis.bus_bandwidths]


def times_data(of: CallTimes, has_gpu: bool) -> dict[str, Any]:
    """Return the calls and the times of an operator or a place; device times are None without a device."""
    data = data_of(of, "calls host_self_ms host_total_ms device_self_ms device_total_ms")
    return data if has_gpu else data | {"device_self_ms": None, "device_total_ms": None}


Item = TypeVar("Item")
BYTES_PER_KIB: Final = 1024
_NOISE: Final = re.compile(r"^void |at::native::|\(anonymous namespace\)::|at::detail::")
_LONG: Final = 1200  # characters; names of kernels can have many thousands


def ms_number(ns: float) -> str:
    """Return a time in ms, without its unit."""
    return f"{ns / NS_PER_MS:.3f}"


def ms(ns: float) -> str:
    """Return a time in ms, with its unit."""
    return f"{ms_number(ns)} ms"


def us(ns: float) -> str:
    """Return a time in us, with its unit."""
    return f"{ns / NS_PER_US:.1f} us"


def percent(share: float | None) -> str:
    """Return a share of 0 to 1 as a percentage; "" for None."""
    return "" if share is None else f"{share:.1%}"


def amount(count: int | None) -> str:
    """Return an amount of bytes with its unit; "" for None."""
    if count is None:
        return ""
    if abs(count) < BYTES_PER_KIB:
        return f"{count} B"
    return bytes_text(count) if abs(count) >= BYTES_PER_MIB / 10 else f"{count / BYTES_PER_KIB:.1f} KiB"


def kernel(name: str) -> str:
    """Return the name of a kernel without the prefixes that all kernels of torch have."""
    return _NOISE.sub("", name[:_LONG])


def listing(
    headers: Sequence[str],
    items: Sequence[Item],
    row_of: Callable[[Item], Sequence[object]],
    most: int,
    *,
    detail_of: Callable[[Item], str] | None = None,
    left: Sequence[int] = (0,),
) -> str:
    """Return a table of the first items, each with a detail below it, and how many more there are."""
    shown, left_out = items[:most], len(items) - most
    text = table(headers, [row_of(item) for item in shown], left)
    text = with_details(text, [detail_of(item) for item in shown] if detail_of else [])
    return text + (f"\n({left_out} more; --json has all)" if left_out > 0 else "")


def finding_lines(finding: Finding, analysis: Trace, traces: str = "") -> list[str]:
    """Return a finding with its saving, and its fix below; ``traces`` names the traces it holds for."""
    saving = rules_findings.saving_text(finding, analysis)
    return [wrapped(f"{traces}{finding.message}.{saving}", "- ", "  "), wrapped(f"{finding.fix}.", "  ", "  ")]


def without_text(analysis: Trace) -> str:
    """Return how much of the idle time is none of the program, which no rule counts; "" if that changes nothing."""
    if percent(analysis.utilization) == percent(analysis.utilization_in_steps):
        return ""
    parts = (
        f"{ms(analysis.recording_ns)} of the recording itself" if analysis.recording_ns else "",
        f"{ms(analysis.unseen_ns)} of work that was not recorded" if analysis.unseen_ns else "",
    )
    said = " and ".join(filter(None, parts))
    return f", {percent(analysis.utilization)} without {said}" if said else ""


def not_checked_lines(missing: Mapping[str, Sequence[str]]) -> list[str]:
    """Return which rules could not run, a line for what each of them needs."""
    if not missing:
        return []
    lines = [wrapped(f"- {what}: {', '.join(codes)}", "  ", "    ") for what, codes in missing.items()]
    return ["", "Not checked, because the trace lacks:", *lines]


def warnings_of(analysis: Trace, of: str = "") -> list[str]:
    """Return why figures cannot be trusted, and what of the file could not be read; ``of`` names the trace."""
    doubts = [f"{of}Incomplete: {message}." for message in analysis.doubts.values()]
    return doubts + [f"{of}File: {note}." for note in analysis.notes]


def one_step_lines(traces: Sequence[Trace]) -> list[str]:
    """Return that findings are of a single step, if all of these traces have no more."""
    if not all(len(trace.steps) == 1 for trace in traces):
        return []
    one = "One step is" if len(traces) == 1 else "One step of each trace is"
    return [wrapped(f"{one} marked: whether others are like it is not known. Record three or more."), ""]
