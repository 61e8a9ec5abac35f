"""One trace, question by question: each figure is computed when a view first asks for it."""

from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Final, TypeVar

import numpy as np

from training_profiler.trace_analysis import host_activity
from training_profiler.trace_analysis.bus_bandwidth import bus_bandwidths
from training_profiler.trace_analysis.code_places import CodePlaces
from training_profiler.trace_analysis.communication import collective_runs, collectives
from training_profiler.trace_analysis.completeness import doubts_of, unseen_work
from training_profiler.trace_analysis.critical_path.graph import graph_of
from training_profiler.trace_analysis.device_activity import (
    StepParts,
    device_of,
    devices_of,
    is_communication,
    is_communication_apart,
    step_parts,
    utilization,
)
from training_profiler.trace_analysis.device_memory import DeviceMemory, memory_of
from training_profiler.trace_analysis.gaps import (
    NOT_RECORDED,
    RECORDING,
    Around,
    Gap,
    HostTime,
)
from training_profiler.trace_analysis.graphs import replayed_share
from training_profiler.trace_analysis.host_activity import TracedModuleCalls
from training_profiler.trace_analysis.host_in_scope import (
    layout_conversions,
    pageable_copies,
    transfers_of,
    waiting_of,
)
from training_profiler.trace_analysis.idle_times import AttributedGap, attributed, idle_times
from training_profiler.trace_analysis.launches import (
    is_section,
    launches_of,
    lost_launches,
    nesting_of,
)
from training_profiler.trace_analysis.load.columns import Columns, distinct
from training_profiler.trace_analysis.load.table import read_columns
from training_profiler.trace_analysis.operators import kernels_of, operators
from training_profiler.trace_analysis.parallelism import parallelism_of
from training_profiler.trace_analysis.phases import pace_variation, phases_of
from training_profiler.trace_analysis.roofline import roofline_of
from training_profiler.trace_analysis.runtime_calls import HAS_GRAPHS
from training_profiler.trace_analysis.scope import is_in_steps, scope_of
from training_profiler.trace_analysis.step_work import call_tree, step_work, steps_of
from training_profiler.trace_analysis.timeline import (
    gaps,
    main_thread,
    overlap,
    timeline_of,
    together,
)

_OF_EVENTS: Final = ("columns", "nesting", "launches", "_communicates", "_reads", "_in_scope", "_lost", "_unseen")
_OF_COMPARISON: Final = ("_event_steps", "step_work", "call_tree")


_Answer = TypeVar("_Answer")


def _of(ask: "Callable[[Trace], _Answer]") -> cached_property[_Answer]:
    """Return a question about a trace, which is answered once."""
    return cached_property(ask)


class Trace:
    """One trace; times in ns, shares 0 to 1, None if unknown: a trace without device work has no idle time."""

    def __init__(self, columns: Columns, path: Path) -> None:
        self.path = path
        self.columns = columns
        self.events = columns.events  # in the file, of any kind
        self.device_names = columns.device_names
        self.device_bytes = columns.device_bytes  # of memory, by index, if the trace has it
        self.rank = columns.rank
        self.world_size = columns.world_size
        self.notes = columns.notes  # what of the file could not be read
        self.compute_capability = columns.compute_capability  # 80 for 8.0; None if unknown or not NVIDIA

    # Which operators, annotations and calls are within which.
    nesting = _of(
        lambda trace: nesting_of(trace.columns, trace.columns.is_of("cpu_op", "user_annotation", "cuda_runtime"))
    )
    # The call, operator and section that launched each work.
    launches = _of(lambda trace: launches_of(trace.columns, trace.nesting))
    _lost = _of(lambda trace: lost_launches(trace.columns, trace.launches))
    _communicates = _of(lambda trace: is_communication(trace.columns))
    _reads = _of(lambda trace: host_activity.device_reads(trace.columns, trace.nesting, trace.launches))
    _unseen = _of(lambda trace: unseen_work(trace.columns, trace.launches, trace._communicates))
    # The number of works of devices.
    gpu_events = _of(lambda trace: int(trace.columns.is_gpu().sum()))
    # The number of streams of all devices.
    streams = _of(lambda trace: _streams(trace.columns))
    # The activity of all of the file together.
    device = _of(lambda trace: device_of(trace.columns, trace._communicates))
    # The activity of each device.
    devices = _of(lambda trace: devices_of(trace.columns, trace._communicates, trace.device))
    _extent = _of(lambda trace: _extent(trace.columns))
    # The communication at times without computation.
    exposed_communication_ns = _of(
        lambda trace: trace.device.communication.total_ns - overlap(trace.device.communication, trace.device.compute)
    )
    # The steps that the profiler marked.
    steps = _of(lambda trace: tuple(step_parts(trace.columns, trace.device)))
    # What shares are of.
    scope = _of(lambda trace: scope_of(trace.columns, trace.device, trace.steps, *trace._extent))
    _in_scope = _of(lambda trace: is_in_steps(trace.steps, trace.columns.begin_ns))
    # Why figures about the device cannot be trusted.
    doubts = _of(
        lambda trace: doubts_of(
            trace.columns, trace.launches, trace._lost, trace._communicates, trace.steps, trace.scope, trace._unseen
        )
    )
    # The variation of the device's times for the steps; None if the host is not ahead of it.
    pace_variation = _of(
        lambda trace: None if trace.doubts else pace_variation(trace.columns, trace.launches, trace.scope)
    )
    # The collectives by kind.
    collectives = _of(lambda trace: tuple(collectives(trace.columns, trace.device, trace._communicates)))
    # The kinds that the trace shows.
    parallelism = _of(
        lambda trace: parallelism_of(
            trace.columns,
            trace.nesting,
            trace.launches,
            trace._communicates,
            trace.collectives,
            trace.scope.repetitions,
        )
    )
    # Where in the code time goes.
    code = _of(lambda trace: trace._found_idle[1])
    _idle_times = _of(
        lambda trace: attributed(
            trace.columns, trace._found_idle[0], trace.launches, trace._reads, trace.scope, trace.code
        )
    )
    # The gaps of at least 30 us, of all devices, in order of time.
    gaps = _of(lambda trace: trace._idle_times.gaps)
    # Idle times of at least 30 us before a device's first work in steps and after its last.
    edges = _of(lambda trace: trace._idle_times.edges)
    # The idle time of both within the scope; of several devices the sum.
    idle_ns_by_cause = _of(lambda trace: trace._idle_times.ns_by_cause)
    _operators = _of(lambda trace: operators(trace.columns, trace.nesting, trace.launches))
    # The operators by name.
    operators = _of(lambda trace: trace._operators[0])
    # The operators by input shapes; empty if shapes were not recorded.
    operators_by_shape = _of(lambda trace: trace._operators[1])
    kernels = _of(lambda trace: kernels_of(trace.columns, trace.launches))
    # What operators achieve beside the peak of the device.
    roofline = _of(lambda trace: roofline_of(trace.columns, trace.launches, trace._communicates))
    # Each run of each kind of collective.
    collective_runs = _of(lambda trace: collective_runs(trace.columns, trace._communicates))
    # How fast collectives are.
    bus_bandwidths = _of(lambda trace: bus_bandwidths(trace.columns, trace._communicates))
    # The copies by kind.
    copies = _of(lambda trace: tuple(host_activity.copies(trace.columns)))
    # Copies and conversions on the device; their time is that in which the device did nothing else.
    conversions = _of(lambda trace: trace._conversions[0])
    # Their time within the scope.
    conversions_in_scope_ns = _of(lambda trace: trace._conversions[1])
    # The conversions of libraries of convolutions.
    layout_conversions = _of(
        lambda trace: layout_conversions(trace.columns, trace.nesting, trace.launches, trace.scope)
    )
    # The copies between host and device.
    transfers = _of(lambda trace: transfers_of(trace.columns, trace.launches, trace.scope))
    # Copies from memory that is not pinned, in the scope; at once count once.
    pageable = _of(lambda trace: pageable_copies(trace.columns, trace.scope))
    # Calls of the host that wait for the device.
    synchronizations = _of(lambda trace: tuple(host_activity.synchronizations(trace.columns)))
    # Collectives of threads of the host, at the same time as others.
    host_collectives = _of(lambda trace: tuple(host_activity.host_collectives(trace.columns)))
    # Waits for batches.
    data_loading = _of(lambda trace: host_activity.data_loading(trace.columns))
    # What the host waits for within the scope.
    waiting = _of(lambda trace: waiting_of(trace.columns, trace.scope, trace._in_scope, trace._reads))
    # The device work of each part of a step.
    phases = _of(
        lambda trace: phases_of(
            trace.columns, trace.nesting, trace.launches, trace._communicates, trace._in_scope, trace.scope
        )
    )
    # Whether the host ran what torch.compile made.
    is_compiled = _of(lambda trace: host_activity.is_compiled(trace.columns))
    # Whether it serves a language model.
    is_serving = _of(lambda trace: host_activity.is_serving(trace.columns))
    # Whether communication has streams of its own.
    is_communication_apart = _of(lambda trace: is_communication_apart(trace.columns, trace._communicates))
    # The share of the device's work by time that replays of graphs launched.
    replayed_share = _of(lambda trace: replayed_share(trace.columns, trace.launches.call))
    _event_steps = _of(lambda trace: steps_of(trace.columns, trace.launches, trace.scope))
    # The work of each step.
    step_work = _of(lambda trace: step_work(trace.columns, trace.nesting, trace.launches, trace._event_steps))
    # The tree of annotations and operators, with the work of each step.
    call_tree = _of(lambda trace: call_tree(trace.columns, trace.launches, trace._event_steps))
    # What waits for what; or why that is unknown.
    graph = _of(
        lambda trace: graph_of(
            trace.columns, trace.nesting, trace.launches, trace._communicates, trace.scope, trace.doubts
        )
    )

    @cached_property
    def gap_lengths_ns(self) -> tuple[int, ...]:
        """The lengths of all gaps, the longest first."""
        between = gaps(self.device.busy)
        return tuple(sorted((between.end_ns - between.begin_ns).tolist(), reverse=True))

    @cached_property
    def _found_idle(self) -> tuple[list[tuple[Gap, bool]], CodePlaces]:
        around = Around(self.device.busy, self._unseen, HostTime(self.columns))
        return idle_times(self.columns, around, self.devices, self.launches, self._lost, self._communicates, self.scope)

    @cached_property
    def _conversions(self) -> tuple[TracedModuleCalls, int]:
        found, converting, others = host_activity.conversions(self.columns, self.nesting, self.launches)
        either = together(converting, others)
        calls = TracedModuleCalls(host_activity.CONVERSIONS[0], found, either.total_ns - others.total_ns)
        return calls, self.scope.within(either) - self.scope.within(others)

    @cached_property
    def allocations(self) -> tuple[TracedModuleCalls, ...]:
        """Calls of the host that allocate or free device memory."""
        rows = np.flatnonzero(host_activity.is_allocation(self.columns))
        return tuple(host_activity.calls_named(self.columns, rows))

    @cached_property
    def memory(self) -> tuple[DeviceMemory, ...]:
        """The memory of each device, if it was recorded."""
        on_main = is_section(self.columns) & (self.columns.thread == main_thread(self.columns))
        return tuple(memory_of(self.columns, self.steps, timeline_of(self.columns, on_main)))

    @cached_property
    def has_graphs(self) -> bool:
        """Whether the device's runtime can replay work as a graph; True if no call of it was recorded."""
        calls = distinct(self.columns.name[self.columns.is_of("cuda_runtime")]).tolist()
        return not calls or any(HAS_GRAPHS.match(self.columns.names[name]) for name in calls)

    @property
    def has_gpu(self) -> bool:
        """Whether the trace contains device work."""
        return self.gpu_events > 0

    @property
    def idle_times(self) -> tuple[AttributedGap, ...]:
        """All idle times of at least 30 us in the steps: gaps, and before the first work and after the last."""
        return self.gaps + self.edges

    @property
    def begin_ns(self) -> int:
        """The begin of the first device work, or of the first host event without device work."""
        return self._extent[0]

    @property
    def span_ns(self) -> int:
        """From the start of the first device work to the end of the last."""
        return self._extent[1] - self._extent[0]

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

    def without_events(self, *, with_graph: bool) -> "Trace":
        """Answer all questions but those of a comparison now, and let go of the events; return the trace itself.

        The graph is computed if it is asked for.
        """
        left_out = _OF_COMPARISON if with_graph else (*_OF_COMPARISON, "graph")
        for name, attribute in vars(Trace).items():
            if isinstance(attribute, cached_property) and name not in left_out:
                getattr(self, name)
        for name in _OF_EVENTS:
            del self.__dict__[name]
        return self


def _variation(steps: Sequence[StepParts]) -> float | None:
    lengths = np.array([step.wall_ns for step in steps], np.float64)
    return float(lengths.std(ddof=1) / lengths.mean()) if lengths.mean() else None


def _streams(columns: Columns) -> int:
    rows = np.flatnonzero(columns.is_gpu())
    device, stream = columns.device[rows], columns.stream[rows]
    return sum(len(distinct(stream[device == each])) for each in distinct(device).tolist())


def _extent(columns: Columns) -> tuple[int, int]:
    is_gpu = columns.is_gpu()
    rows = np.flatnonzero(is_gpu) if is_gpu.any() else np.arange(len(columns.begin_ns))
    return int(columns.begin_ns[rows].min()), int(columns.end_ns[rows].max())


def analyse(path: Path) -> Trace:
    """Return the trace in ``path``.

    Raises:
        TraceError: The file cannot be read or is not a trace. The message has one line.
    """
    return Trace(read_columns(path), path)
