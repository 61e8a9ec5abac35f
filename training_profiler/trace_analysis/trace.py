"""One trace, question by question: each figure is computed when a view first asks for it."""

from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Final, TypeVar

import numpy as np

from training_profiler.trace_analysis import host_activity
from training_profiler.trace_analysis.code_places import CodePlaces
from training_profiler.trace_analysis.communication import bus_bandwidths, collective_runs, collectives, parallelism_of
from training_profiler.trace_analysis.completeness import doubts_of, unseen_work
from training_profiler.trace_analysis.events import (
    DeviceMemory,
    StepParts,
    TracedEvents,
    devices_of,
    is_communication_apart,
    memory_of,
    utilization,
)
from training_profiler.trace_analysis.gaps import NOT_RECORDED, RECORDING, Gap
from training_profiler.trace_analysis.idle_times import AttributedGap, attributed, idle_times
from training_profiler.trace_analysis.launches import is_section, replayed_share
from training_profiler.trace_analysis.load.columns import Columns, distinct
from training_profiler.trace_analysis.load.table import read_columns
from training_profiler.trace_analysis.operators import kernels_of, operators, roofline_of
from training_profiler.trace_analysis.path_graph import graph_of
from training_profiler.trace_analysis.phases import pace_variation, phases_of
from training_profiler.trace_analysis.runtime_calls import HAS_GRAPHS
from training_profiler.trace_analysis.timeline import gaps, main_thread, overlap, timeline_of

_OF_EVENTS: Final = ("columns", "nesting", "launches", "communicates", "in_scope", "lost", "_reads", "_unseen")
_Answer = TypeVar("_Answer")


def _of(ask: "Callable[[Trace], _Answer]") -> cached_property[_Answer]:
    """Return a question about a trace, which is answered once."""
    return cached_property(ask)


class Trace(TracedEvents):
    """One trace; times in ns, shares 0 to 1, None if unknown: a trace without device work has no idle time."""

    def __init__(self, columns: Columns, path: Path) -> None:
        super().__init__(columns, path)
        self.events = columns.events  # in the file, of any kind
        self.device_names = columns.device_names
        self.device_bytes = columns.device_bytes  # of memory, by index, if the trace has it
        self.rank = columns.rank
        self.world_size = columns.world_size
        self.notes = columns.notes  # what of the file could not be read
        self.compute_capability = columns.compute_capability  # 80 for 8.0; None if unknown or not NVIDIA

    _reads = _of(host_activity.device_reads)
    _unseen = _of(unseen_work)
    # The number of streams of all devices.
    streams = _of(lambda trace: _streams(trace.columns))
    # The activity of each device.
    devices = _of(lambda trace: devices_of(trace.columns, trace.communicates, trace.device))
    # The communication at times without computation.
    exposed_communication_ns = _of(
        lambda trace: trace.device.communication.total_ns - overlap(trace.device.communication, trace.device.compute)
    )
    # Why figures about the device cannot be trusted.
    doubts = _of(lambda trace: doubts_of(trace, trace._unseen))
    # The variation of the device's times for the steps; None if the host is not ahead of it.
    pace_variation = _of(lambda trace: None if trace.doubts else pace_variation(trace))
    # The collectives by kind, and each run of each kind.
    collectives = _of(collectives)
    collective_runs = _of(collective_runs)
    # How fast collectives are.
    bus_bandwidths = _of(bus_bandwidths)
    # The kinds that the trace shows.
    parallelism = _of(lambda trace: parallelism_of(trace, trace.collectives))
    _found_idle: "cached_property[tuple[list[tuple[Gap, bool]], CodePlaces]]" = _of(
        lambda trace: idle_times(trace, trace.devices, trace._unseen)
    )
    # Where in the code time goes.
    code = _of(lambda trace: trace._found_idle[1])
    _idle_times = _of(lambda trace: attributed(trace, trace._found_idle[0], trace._reads, trace.code))
    # The gaps of at least 30 us, of all devices, in order of time.
    gaps = _of(lambda trace: trace._idle_times.gaps)
    # Idle times of at least 30 us before a device's first work in steps and after its last.
    edges = _of(lambda trace: trace._idle_times.edges)
    # The idle time of both within the scope; of several devices the sum.
    idle_ns_by_cause = _of(lambda trace: trace._idle_times.ns_by_cause)
    _operators = _of(operators)
    # The operators by name.
    operators = _of(lambda trace: trace._operators[0])
    # The operators by input shapes; empty if shapes were not recorded.
    operators_by_shape = _of(lambda trace: trace._operators[1])
    kernels = _of(kernels_of)
    # What operators achieve beside the peak of the device.
    roofline = _of(roofline_of)
    # What the device copies, reads of it that wait, and other activity of the host.
    copies = _of(host_activity.copies)
    synchronizations = _of(host_activity.synchronizations)
    allocations = _of(host_activity.allocations)
    host_collectives = _of(host_activity.host_collectives)
    data_loading = _of(host_activity.data_loading)
    transfers = _of(host_activity.transfers_of)
    pageable = _of(host_activity.pageable_copies)
    layout_conversions = _of(host_activity.layout_conversions)
    _conversions = _of(host_activity.conversions)
    # Copies and conversions on the device; their time is that in which the device did nothing else.
    conversions = _of(lambda trace: trace._conversions[0])
    # Their time within the scope.
    conversions_in_scope_ns = _of(lambda trace: trace._conversions[1])
    # What the host waits for within the scope.
    waiting = _of(lambda trace: host_activity.waiting_of(trace, trace._reads))
    # The device work of each part of a step.
    phases = _of(phases_of)
    is_compiled = _of(host_activity.is_compiled)
    is_serving = _of(host_activity.is_serving)
    # Whether communication has streams of its own.
    is_communication_apart = _of(lambda trace: is_communication_apart(trace.columns, trace.communicates))
    # The share of the device's work by time that replays of graphs launched.
    replayed_share = _of(lambda trace: replayed_share(trace.columns, trace.launches.call))
    # What waits for what; or why that is unknown.
    graph = _of(lambda trace: graph_of(trace, trace.doubts))

    @cached_property
    def gap_lengths_ns(self) -> tuple[int, ...]:
        """The lengths of all gaps, the longest first."""
        between = gaps(self.device.busy)
        return tuple(sorted((between.end_ns - between.begin_ns).tolist(), reverse=True))

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
    def idle_times(self) -> tuple[AttributedGap, ...]:
        """All idle times of at least 30 us in the steps: gaps, and before the first work and after the last."""
        return self.gaps + self.edges

    @property
    def begin_ns(self) -> int:
        """The begin of the first device work, or of the first host event without device work."""
        return self.extent[0]

    @property
    def span_ns(self) -> int:
        """From the start of the first device work to the end of the last."""
        return self.extent[1] - self.extent[0]

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
        """Answer all questions now, and let go of the events; return the trace itself.

        The graph is computed if it is asked for.
        """
        for name, attribute in [*vars(TracedEvents).items(), *vars(Trace).items()]:
            if isinstance(attribute, cached_property) and (with_graph or name != "graph"):
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


def analyse(path: Path) -> Trace:
    """Return the trace in ``path``.

    Raises:
        TraceError: The file cannot be read or is not a trace. The message has one line.
    """
    return Trace(read_columns(path), path)
