"""The analysis of one trace, from its columns."""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from training_profiler.trace_analysis import host_activity
from training_profiler.trace_analysis.bus_bandwidth import BusBandwidth, bus_bandwidths
from training_profiler.trace_analysis.call_tree import Branch, call_tree
from training_profiler.trace_analysis.call_tree import Path as CallPath
from training_profiler.trace_analysis.code_places import NOWHERE, CodePlaces, code_places, shortened_line
from training_profiler.trace_analysis.communication import Collective, Runs, RunsOf, collective_runs, collectives
from training_profiler.trace_analysis.completeness import Doubt, doubts_of
from training_profiler.trace_analysis.critical_path.graph import Graph, graph_of
from training_profiler.trace_analysis.device_activity import (
    Device,
    OneDevice,
    StepParts,
    device_of,
    devices_of,
    is_communication,
    is_communication_apart,
    step_parts,
    utilization,
)
from training_profiler.trace_analysis.gaps import (
    NO_IDLE_TIME,
    NOT_RECORDED,
    RECORDING,
    Around,
    Gap,
    HostTime,
    edge_gaps,
    long_gaps,
)
from training_profiler.trace_analysis.graphs import captures_of, replayed_share
from training_profiler.trace_analysis.intervals import NOTHING, covered, gaps, overlap, together, union
from training_profiler.trace_analysis.kernels import Kernels, kernels_of
from training_profiler.trace_analysis.launches import Launches, LostLaunches, is_section, launches_of, lost_launches
from training_profiler.trace_analysis.layout_conversions import LayoutConversions, layout_conversions
from training_profiler.trace_analysis.load.columns import NONE, Bools, Columns, Ints, distinct
from training_profiler.trace_analysis.load.table import read_columns
from training_profiler.trace_analysis.memory.allocator import DeviceMemory, memory_of
from training_profiler.trace_analysis.nesting import Nesting, nesting_of
from training_profiler.trace_analysis.operators import Operator, operators
from training_profiler.trace_analysis.pace import pace_variation
from training_profiler.trace_analysis.parallelism import parallelism_of
from training_profiler.trace_analysis.phases import Phases, phases_of
from training_profiler.trace_analysis.roofline import Roofline, roofline_of
from training_profiler.trace_analysis.runtime_calls import HAS_GRAPHS
from training_profiler.trace_analysis.scope import Scope, scope_of
from training_profiler.trace_analysis.stalls import Stall, stalls_of
from training_profiler.trace_analysis.step_work import StepWork, step_work, steps_of
from training_profiler.trace_analysis.timeline import Timeline, main_thread, step_at, timeline_of
from training_profiler.trace_analysis.transfers import Transfers, transfers_of
from training_profiler.trace_analysis.unseen_work import unseen_work

MOST_OF_GAP: Final = 0.5


@dataclass(frozen=True, slots=True)
class AttributedGap:
    """A gap with the names around it; "" unknown."""

    gap: Gap
    next_name: str  # the work that ended it
    operator: str  # launched that work
    section: str  # contains the launch
    step: str  # contains the begin of the gap
    module: str  # the innermost nn.Module that the host was in for longer than in any other
    line: str  # the same for lines of the program
    module_part: float  # of the gap, 0 to 1
    line_part: float
    follows_read: bool  # whether the host was reading a value from the device when the gap began
    in_scope_ns: int  # the part of the gap that lies in steps, or in the recording if it has none
    stall: Stall

    def ns_of(self, *causes: str) -> int:
        """Return how much of it lies within the scope and has one of these causes."""
        return round(self.in_scope_ns * self.gap.share_of(*causes))

    @property
    def where(self) -> str:
        """The module and the line, as "in Linear_0 (model/net.py:41 in forward)"; "" if both are unknown.

        What has less than half of the gap has its share beside it. What the program did not cause is in no place.
        """
        if self.gap.cause in NO_IDLE_TIME:
            return ""
        line, module = shortened_line(self.line), self.module
        of_line, of_module = (
            "" if part >= MOST_OF_GAP else f"{part:.0%} of it" for part in (self.line_part, self.module_part)
        )
        if not module:
            return line and f"at {line}{of_line and f' ({of_line})'}"
        inner = filter(None, (of_module, line and ", ".join(filter(None, (line, of_line)))))
        return f"in {module}{f' ({within})' if (within := '; '.join(inner)) else ''}"


@dataclass(frozen=True, slots=True)
class Waiting:
    """What the host waited for within the scope; ns. What several threads wait for at once counts once."""

    data_ns: tuple[int, ...]  # for batches, per window of the scope
    data_names: tuple[str, ...]  # the names of these waits
    worker_start_ns: int  # of these waits, what the start of workers took
    allocation_ns: int  # in calls that allocate or free device memory, not while a graph is captured
    allocations: int
    longest_allocation_ns: int  # of these calls
    read_ns: int  # in operators that read a value from the device
    reads: tuple[host_activity.ModuleCalls, ...]  # these operators, by name
    side_work_ns: dict[str, int]  # by name of the section


@dataclass(frozen=True, slots=True)
class Analysis:
    """One trace; times in ns, shares 0 to 1, None if unknown: a trace without device work has no idle time."""

    path: Path
    events: int  # in the file, of any kind
    gpu_events: int
    device_names: tuple[str, ...]
    device_bytes: dict[int, int]  # of memory, by index, if the trace has it
    streams: int
    rank: int | None
    world_size: int | None
    device: Device  # all of the file together
    devices: tuple[OneDevice, ...]
    begin_ns: int  # of the first device work, or of the first host event without device work
    end_ns: int
    exposed_communication_ns: int
    steps: tuple[StepParts, ...]  # that the profiler marked
    pace_variation: float | None  # of the device's times for the steps; None if the host is not ahead of it
    scope: Scope  # what shares are of
    parallelism: tuple[str, ...]  # the kinds that the trace shows
    doubts: tuple[Doubt, ...]  # why figures about the device cannot be trusted
    notes: tuple[str, ...]  # what of the file could not be read
    gap_lengths_ns: tuple[int, ...]  # all gaps, the longest first
    gaps: tuple[AttributedGap, ...]  # those of at least 30 us, of all devices, in order of time
    edges: tuple[AttributedGap, ...]  # the same before a device's first work in steps and after its last
    idle_ns_by_cause: Mapping[str, int]  # of both within the scope; of several devices the sum
    operators: tuple[Operator, ...]
    operators_by_shape: tuple[Operator, ...]  # empty if shapes were not recorded
    code: CodePlaces
    kernels: Kernels
    roofline: Roofline
    collectives: tuple[Collective, ...]
    collective_runs: Mapping[RunsOf, Runs]
    bus_bandwidths: tuple[BusBandwidth, ...]
    copies: tuple[host_activity.ModuleCalls, ...]
    conversions: host_activity.ModuleCalls  # their time is that in which the device did nothing else
    conversions_in_scope_ns: int
    layout_conversions: LayoutConversions  # of libraries of convolutions
    transfers: Transfers
    pageable: host_activity.ModuleCalls  # copies from memory that is not pinned, in the scope; at once count once
    synchronizations: tuple[host_activity.ModuleCalls, ...]
    allocations: tuple[host_activity.ModuleCalls, ...]
    host_collectives: tuple[host_activity.ModuleCalls, ...]  # of threads of the host, at the same time as others
    data_loading: host_activity.ModuleCalls
    waiting: Waiting
    memory: tuple[DeviceMemory, ...]
    phases: Phases
    compute_capability: int | None  # 80 for 8.0; None if unknown or not NVIDIA
    is_compiled: bool  # whether the host ran what torch.compile made
    is_serving: bool  # whether it serves a language model
    is_communication_apart: bool  # whether it has streams of its own
    has_graphs: bool  # whether the device's runtime can replay work as a graph; True if no call of it was recorded
    replayed_share: float  # of the device's work by time, launched by replays of graphs
    step_work: StepWork | None  # only if asked for: nothing but a comparison needs it
    call_tree: Mapping[CallPath, Branch] | None  # the same
    graph: Graph | str | None  # what waits for what; or why that is unknown; None if it was not asked for

    @property
    def has_gpu(self) -> bool:
        """Whether the trace contains device work."""
        return self.gpu_events > 0

    @property
    def idle_times(self) -> tuple[AttributedGap, ...]:
        """All idle times of at least 30 us in the steps: gaps, and before the first work and after the last."""
        return self.gaps + self.edges

    @property
    def span_ns(self) -> int:
        """From the start of the first device work to the end of the last."""
        return self.end_ns - self.begin_ns

    @property
    def is_whole(self) -> bool:
        """Whether nothing speaks against the figures about the device."""
        return not self.doubts

    @property
    def utilization_in_steps(self) -> float | None:
        """The share of the steps in which a device was busy."""
        return utilization(self.steps) if self.has_gpu else None

    @property
    def recording_ns(self) -> int:
        """The idle time within the scope in which the recording held up the host; of several devices the mean."""
        return self._idle_ns(RECORDING)

    @property
    def unseen_ns(self) -> int:
        """The time within the scope in which the device did what is not recorded; of several devices the mean."""
        return self._idle_ns(NOT_RECORDED)

    def _idle_ns(self, cause: str) -> int:
        return self.idle_ns_by_cause.get(cause, 0) // max(1, len(self.devices))

    @property
    def utilization(self) -> float | None:
        """The share of the scope in which a device was busy, without idle time that the program did not cause."""
        used, wall_ns = self.scope.utilization, self.scope.wall_ns - self.recording_ns - self.unseen_ns
        return None if used is None or wall_ns <= 0 else min(1.0, used * self.scope.wall_ns / wall_ns)

    @property
    def program_ns(self) -> int:
        """The length of the scope without the time that the recording held up the host."""
        return max(0, self.scope.wall_ns - self.recording_ns)

    @property
    def settled_ns(self) -> int:
        """The same with the time that the device took for the work of the steps after their end.

        A host that runs ahead only fills the queue in few recorded steps, while the device needs longer for them.
        """
        return max(self.program_ns, self.phases.wall_ns - self.recording_ns)

    @property
    def is_one_step(self) -> bool:
        """Whether shares are of a single step, and nothing shows whether others are like it."""
        return len(self.steps) == 1

    @property
    def step_variation(self) -> float | None:
        """The coefficient of variation of the steps' lengths; None below 3 steps."""
        if len(self.steps) < 3:
            return None
        return _variation(self.steps)

    @property
    def later_variation(self) -> float | None:
        """The same without the first step, in which the recording starts; None below 3 steps."""
        return None if len(self.steps) < 3 else _variation(self.steps[1:])

    @property
    def settled_variation(self) -> float | None:
        """The least of both, and of the device's times for the steps where the host merely runs ahead of it."""
        known = (self.step_variation, self.later_variation, self.pace_variation)
        return min((each for each in known if each is not None), default=None)


def _variation(steps: tuple[StepParts, ...]) -> float | None:
    lengths = np.array([step.wall_ns for step in steps], np.float64)
    return float(lengths.std(ddof=1) / lengths.mean()) if lengths.mean() else None


def analyse(path: Path, *, with_step_work: bool = False, with_graph: bool = False) -> Analysis:
    """Return the analysis of the trace in ``path``.

    A comparison needs the work of each step, and the critical path the graph.

    Raises:
        TraceError: The file cannot be read or is not a trace. The message has one line.
    """
    return analyse_columns(read_columns(path), path, with_step_work=with_step_work, with_graph=with_graph)


def analyse_columns(
    columns: Columns, path: Path, *, with_step_work: bool = False, with_graph: bool = False
) -> Analysis:
    """Return the analysis of the trace that was read from ``path``."""
    nesting = nesting_of(columns, columns.is_of("cpu_op", "user_annotation", "cuda_runtime"))
    launches = launches_of(columns, nesting)
    lost, communicates = lost_launches(columns, launches), is_communication(columns)
    device = device_of(columns, communicates)
    steps = tuple(step_parts(columns, device))
    gpu_rows = np.flatnonzero(columns.is_gpu())
    extent = _extent(columns, gpu_rows)
    scope = scope_of(columns, device, steps, *extent)
    in_scope = _is_in(steps, columns.begin_ns)
    reads = host_activity.device_reads(columns, nesting, launches)
    by_name, by_shape = operators(columns, nesting, launches)
    met, devices = tuple(collectives(columns, device, communicates)), devices_of(columns, communicates, device)
    unseen = unseen_work(columns, launches, communicates)
    doubts = doubts_of(columns, launches, lost, communicates, steps, scope, unseen)
    around = Around(device.busy, unseen, HostTime(columns))
    idle, code = _idle_times(columns, around, devices, launches, lost, communicates, scope)
    event_steps = steps_of(columns, launches, scope) if with_step_work else None
    return Analysis(
        **_of_file(columns, communicates),
        replayed_share=replayed_share(columns, launches.call),
        **_attributed(columns, idle, launches, reads, scope, code),
        path=path,
        device=device,
        devices=devices,
        begin_ns=extent[0],
        end_ns=extent[1],
        exposed_communication_ns=device.communication.total_ns - overlap(device.communication, device.compute),
        steps=steps,
        pace_variation=None if doubts else pace_variation(columns, launches, scope),
        scope=scope,
        parallelism=parallelism_of(columns, nesting, launches, communicates, met, scope.repetitions),
        doubts=doubts,
        gap_lengths_ns=_gap_lengths(device),
        operators=by_name,
        operators_by_shape=by_shape,
        code=code,
        kernels=kernels_of(columns, launches),
        roofline=roofline_of(columns, launches, communicates),
        collectives=met,
        collective_runs=collective_runs(columns, communicates),
        bus_bandwidths=bus_bandwidths(columns, communicates),
        copies=tuple(host_activity.copies(columns)),
        **_conversions(columns, nesting, launches, scope),
        transfers=transfers_of(columns, launches, scope),
        pageable=_pageable(columns, scope),
        synchronizations=tuple(host_activity.synchronizations(columns)),
        allocations=tuple(host_activity.calls_named(columns, np.flatnonzero(host_activity.is_allocation(columns)))),
        host_collectives=tuple(host_activity.host_collectives(columns)),
        data_loading=host_activity.data_loading(columns),
        waiting=_waiting(columns, scope, in_scope, reads),
        memory=tuple(memory_of(columns, steps, _main_sections(columns))),
        phases=phases_of(columns, nesting, launches, communicates, in_scope, scope),
        step_work=step_work(columns, nesting, launches, event_steps) if event_steps else None,
        call_tree=call_tree(columns, launches, event_steps) if event_steps else None,
        graph=graph_of(columns, nesting, launches, communicates, scope, doubts) if with_graph else None,
    )


def _conversions(columns: Columns, nesting: Nesting, launches: Launches, scope: Scope) -> dict[str, Any]:
    """Return the copies and conversions, those of layouts, and how long nothing else ran beside them."""
    conversions, converting, others = host_activity.conversions(columns, nesting, launches)
    either = together(converting, others)
    alone_ns = either.total_ns - others.total_ns
    return {
        "conversions": host_activity.ModuleCalls(host_activity.CONVERSIONS[0], conversions, alone_ns),
        "layout_conversions": layout_conversions(columns, nesting, launches, scope),
        "conversions_in_scope_ns": scope.within(either) - scope.within(others),
    }


def _streams(columns: Columns, rows: Ints) -> int:
    device, stream = columns.device[rows], columns.stream[rows]
    return sum(len(distinct(stream[device == each])) for each in distinct(device).tolist())


def _of_file(columns: Columns, communicates: Bools) -> dict[str, Any]:
    """Return the fields of an analysis that the file itself has."""
    calls = distinct(columns.name[columns.is_of("cuda_runtime")]).tolist()
    return {
        "events": columns.events,
        "gpu_events": int(columns.is_gpu().sum()),
        "streams": _streams(columns, np.flatnonzero(columns.is_gpu())),
        "device_names": columns.device_names,
        "device_bytes": columns.device_bytes,
        "rank": columns.rank,
        "world_size": columns.world_size,
        "notes": columns.notes,
        "compute_capability": columns.compute_capability,
        "is_compiled": host_activity.is_compiled(columns),
        "is_serving": host_activity.is_serving(columns),
        "is_communication_apart": is_communication_apart(columns, communicates),
        "has_graphs": not calls or any(HAS_GRAPHS.match(columns.names[name]) for name in calls),
    }


def _extent(columns: Columns, gpu_rows: Ints) -> tuple[int, int]:
    """Return the begin and the end of the work on the device, or of everything without any."""
    rows = gpu_rows if len(gpu_rows) else np.arange(len(columns.begin_ns))
    return int(columns.begin_ns[rows].min()), int(columns.end_ns[rows].max())


def _gap_lengths(device: Device) -> tuple[int, ...]:
    between = gaps(device.busy)
    return tuple(sorted((between.end_ns - between.begin_ns).tolist(), reverse=True))


def _step_of(steps: tuple[StepParts, ...], at_ns: Ints) -> Ints:
    return step_at([step.begin_ns for step in steps], [step.end_ns for step in steps], at_ns)


def _main_sections(columns: Columns) -> Timeline:
    return timeline_of(columns, is_section(columns) & (columns.thread == main_thread(columns)))


def _is_in(steps: tuple[StepParts, ...], at_ns: Ints) -> Bools:
    """Return which times are in steps. Without steps, all are: the call that launched the first work precedes it."""
    return _step_of(steps, at_ns) != NONE if steps else np.ones(len(at_ns), np.bool_)


def _waiting(columns: Columns, scope: Scope, in_scope: Bools, reads: Ints) -> Waiting:
    begins, ends = (np.array([getattr(part, key) for part in scope.parts], np.int64) for key in ("begin_ns", "end_ns"))
    waits, names = host_activity.data_waits(columns)
    captured = covered(union(*captures_of(columns)), columns.begin_ns, columns.begin_ns + 1) > 0
    allocations = host_activity.is_allocation(columns) & in_scope & ~captured
    reads = reads[in_scope[reads]]
    return Waiting(
        tuple(covered(waits, begins, ends).tolist()),
        names,
        scope.within(host_activity.worker_start(columns)),
        scope.within(host_activity.span_of(columns, allocations)),
        int(allocations.sum()),
        int((columns.end_ns - columns.begin_ns)[allocations].max(initial=0)),
        scope.within(host_activity.span_of(columns, reads)),
        tuple(sorted(host_activity.calls_named(columns, reads), key=lambda calls: -calls.total_ns)),
        {name: scope.within(span) for name, span in host_activity.side_work(columns).items()},
    )


def _pageable(columns: Columns, scope: Scope) -> host_activity.ModuleCalls:
    rows = np.flatnonzero(host_activity.is_pageable_copy(columns))
    ends_ns = np.maximum(columns.end_ns, columns.begin_ns + 1)  # older traces have copies of 0 us
    rows = rows[covered(scope.windows, columns.begin_ns[rows], ends_ns[rows]) > 0]
    return host_activity.ModuleCalls("", len(rows), scope.within(host_activity.span_of(columns, rows)))


def _idle_times(
    columns: Columns,
    around: Around,
    devices: tuple[OneDevice, ...],
    launches: Launches,
    lost: LostLaunches,
    communicates: Bools,
    scope: Scope,
) -> tuple[list[tuple[Gap, bool]], CodePlaces]:
    """Return the idle times of all devices in order of time, and where in the code time and gaps are.

    Each idle time comes with whether it lies between two works: a gap.
    """
    steps = scope.windows if scope.is_steps else NOTHING
    idle: list[tuple[Gap, bool]] = []
    for device in devices:
        busy, index = device.device.busy, device.index
        idle += [(gap, True) for gap in long_gaps(columns, busy, around, launches, communicates, index)]
        idle += [(edge, False) for edge in edge_gaps(columns, busy, around, launches, lost, index, steps)]
    idle.sort(key=lambda found: (found[0].begin_ns, found[0].device))
    is_counted = np.array([is_between and gap.cause not in NO_IDLE_TIME for gap, is_between in idle], np.bool_)
    return idle, code_places(columns, launches, [gap for gap, _ in idle], is_counted)


def _attributed(
    columns: Columns, idle: list[tuple[Gap, bool]], launches: Launches, reads: Ints, scope: Scope, code: CodePlaces
) -> dict[str, Any]:
    """Return the gaps with the names around them, and the idle times that are none, as the fields of an analysis."""
    long = [gap for gap, _ in idle]
    begins, ends = (np.array([getattr(gap, key) for gap in long], np.int64) for key in ("begin_ns", "end_ns"))
    order = np.argsort(columns.end_ns[reads])
    read_ends, read_begins = columns.end_ns[reads][order], columns.begin_ns[reads][order]
    read = np.searchsorted(read_ends, begins, side="right")  # the first read that ends after the gap begins
    follows = np.append(read_begins, np.iinfo(np.int64).max)[read] <= begins

    def name(row: int) -> str:
        return "" if row == NONE else columns.names[columns.name[row]]

    def name_by(of_work: Ints, row: int) -> str:
        return "" if row == NONE else name(int(of_work[row]))

    labels = ("", *(step.name for step in scope.parts))
    in_scope_ns = covered(scope.windows, begins, ends).tolist()
    stalls = stalls_of(columns, long, launches)
    nowhere = (NOWHERE,) * len(long)
    modules, lines = code.gap_modules or nowhere, code.gap_lines or nowhere
    found: dict[str, list[AttributedGap]] = {"gaps": [], "edges": []}
    by_cause: dict[str, int] = defaultdict(int)
    for (gap, is_between), step, module, line, is_after, within_ns, stall in zip(
        idle, _step_of(scope.parts, begins).tolist(), modules, lines, follows.tolist(), in_scope_ns, stalls, strict=True
    ):
        for cause, share in gap.shares:
            by_cause[cause] += round(share * within_ns)
        row = gap.next_row
        operator, section = name_by(launches.operator, row), name_by(launches.section, row)
        found["gaps" if is_between else "edges"].append(
            AttributedGap(
                gap,
                name(row),
                operator,
                section,
                labels[step + 1],
                module.name,
                line.name,
                module.part,
                line.part,
                bool(is_after),
                within_ns,
                stall,
            )
        )
    return {field: tuple(places) for field, places in found.items()} | {"idle_ns_by_cause": dict(by_cause)}
