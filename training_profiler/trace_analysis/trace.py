"""One trace, question by question: each figure is computed when a view first asks for it."""

import re
from collections import Counter
from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Final, TypeVar

import numpy as np

from training_profiler.trace_analysis import communication, events, host_activity, known_names
from training_profiler.trace_analysis.code_places import idle_times
from training_profiler.trace_analysis.columns import Columns
from training_profiler.trace_analysis.completeness import IMPOSSIBLE, doubts_of, unseen_work, without_skew
from training_profiler.trace_analysis.counters import series_of
from training_profiler.trace_analysis.event_table import ranks_of, read_columns, read_ranks
from training_profiler.trace_analysis.events import DeviceMemory, StepParts, TracedEvents
from training_profiler.trace_analysis.gaps import AFTER_READ, NOT_RECORDED, RECORDING
from training_profiler.trace_analysis.host_activity import TracedModuleCalls, calls_named, pace_variation, phases_of
from training_profiler.trace_analysis.launches import replayed_share
from training_profiler.trace_analysis.operators import kernels_of, operators, roofline_of
from training_profiler.trace_analysis.path_graph import graph_of

TENSOR_CORES_SINCE: Final = 70  # compute capability of Volta
LEAST_IN_TURNS: Final = 0.5  # of the scope
_OF_EVENTS: Final = ("columns", "nesting", "launches", "communicates", "in_scope", "lost", "_reads", "_unseen")
_Answer = TypeVar("_Answer")


def _of(ask: "Callable[[Trace], _Answer]") -> cached_property[_Answer]:
    return cached_property(ask)


def _calls(pattern: re.Pattern[str], *categories: str) -> cached_property[tuple[TracedModuleCalls, ...]]:
    return _of(lambda trace: calls_named(trace.columns, trace.columns.named(pattern.search, *categories)))


def _runs(pattern: re.Pattern[str], *categories: str) -> cached_property[bool]:
    return _of(lambda trace: bool(trace.columns.named(pattern.search, *categories).any()))


class Trace(TracedEvents):
    """One trace; times in ns, shares 0 to 1, None if unknown: a trace without device work has no idle time."""

    def __init__(self, columns: Columns, path: Path) -> None:
        super().__init__(columns, path)
        self.events = columns.events  # in the file, of any kind
        self.device_names = columns.device_names
        self.device_bytes = columns.device_bytes  # of memory, by index, if the trace has it
        self.rank = columns.rank
        self.world_size = columns.world_size
        self.notes = columns.notes  # what of the file could not be read, or had to be corrected
        self.compute_capability = columns.compute_capability  # 80 for 8.0; None if unknown or not NVIDIA

    _reads = _of(host_activity.device_reads)
    _unseen = _of(unseen_work)
    # The number of streams of all devices.
    streams = _of(
        lambda trace: len(np.unique((trace.columns.device * 2**40 + trace.columns.stream)[trace.columns.is_gpu()]))
    )
    # The activity of each device.
    devices = _of(lambda trace: events.devices_of(trace.columns, trace.communicates, trace.device))
    # Whether one device works while the others wait.
    takes_turns = _of(lambda trace: events.take_turns(trace.devices, trace.device.busy))
    # The communication at times without computation.
    exposed_communication_ns = _of(
        lambda trace: (trace.device.communication | trace.device.compute).total_ns - trace.device.compute.total_ns
    )
    # Why figures about the device cannot be trusted, by code.
    doubts = _of(lambda trace: doubts_of(trace, trace._unseen))
    # The variation of the device's times for the steps; None if the host is not ahead of it.
    pace_variation = _of(lambda trace: None if trace.doubts else pace_variation(trace))
    # The collectives by kind, and each run of each kind.
    collectives = _of(communication.collectives)
    collective_runs = _of(communication.collective_runs)
    # How fast collectives are.
    bus_bandwidths = _of(communication.bus_bandwidths)
    # The kinds that the trace shows.
    parallelism = _of(lambda trace: communication.parallelism_of(trace, trace.collectives))
    # What makes communication cost less under these.
    communication_advice = _of(lambda trace: communication.advice(trace.parallelism, trace.is_communication_apart))
    _idle_times = _of(
        lambda trace: idle_times(trace, trace.devices, trace._unseen, trace._reads, takes_turns=trace.takes_turns)
    )
    # Where in the code time goes.
    code = _of(lambda trace: trace._idle_times[1])
    # The gaps of at least 30 us, of all devices, in order of time.
    gaps = _of(lambda trace: tuple(gap for gap in trace._idle_times[0] if not gap.is_edge))
    # Idle times of at least 30 us before a device's first work in steps and after its last.
    edges = _of(lambda trace: tuple(gap for gap in trace._idle_times[0] if gap.is_edge))
    _operators = _of(operators)
    # The operators by name.
    operators = _of(lambda trace: trace._operators[0])
    # The operators by input shapes; empty if shapes were not recorded.
    operators_by_shape = _of(lambda trace: trace._operators[1])
    kernels = _of(kernels_of)
    # What operators achieve beside the peak of the device.
    roofline = _of(roofline_of)
    # What the device copies, reads of it that wait, and other activity of the host.
    copies = _of(lambda trace: calls_named(trace.columns, trace.columns.is_of("gpu_memcpy"), has_bytes=True))
    synchronizations = _calls(known_names.SYNCHRONIZE, "cuda_runtime")
    allocations = _calls(known_names.ALLOCATE, "cuda_runtime")
    # The collectives that threads of the host run, such as those of gloo, at the same time as others.
    host_collectives = _calls(host_activity.ON_HOST, "cpu_op", "user_annotation")
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
    # Whether the host ran what torch.compile made.
    is_compiled = _runs(host_activity.COMPILED, "cpu_op", "user_annotation", "gpu_user_annotation")
    # Whether it runs a server of language models, which reserves memory for its cache at its start.
    is_serving = _runs(host_activity.SERVES, "cpu_op", "user_annotation", "kernel")
    # The share of the device's work by time that replays of graphs launched.
    replayed_share = _of(lambda trace: replayed_share(trace.columns, trace.launches.call))
    # What waits for what; or why that is unknown.
    graph = _of(lambda trace: graph_of(trace, trace.doubts))

    @cached_property
    def is_communication_apart(self) -> bool:
        """Whether nothing else runs on the streams that communicate."""
        columns, communicates, is_kernel = self.columns, self.communicates, self.columns.is_of("kernel")
        streams = columns.device * (int(columns.stream.max(initial=0)) + 2) + columns.stream
        return not np.isin(streams[is_kernel & ~communicates], streams[communicates]).any()

    @cached_property
    def idle_ns_by_cause(self) -> dict[str, int]:
        """The idle time of gaps and edges within the scope; of several devices the sum."""
        sums: Counter[str] = Counter()
        for gap in self._idle_times[0]:
            for cause, _ in gap.shares:
                sums[cause] += gap.ns_of(cause)
        return dict(sums)

    @cached_property
    def gap_lengths_ns(self) -> tuple[int, ...]:
        """The lengths of all gaps, the longest first."""
        return tuple(sorted(self.device.busy.between.length_ns.tolist(), reverse=True))

    @cached_property
    def memory(self) -> tuple[DeviceMemory, ...]:
        """The memory of each device, if it was recorded."""
        on_main = self.columns.is_section() & (self.columns.thread == self.columns.main_thread)
        return tuple(events.memory_of(self.columns, self.steps, self.columns.timeline(on_main)))

    @cached_property
    def has_graphs(self) -> bool:
        """Whether the device's runtime can replay work as a graph; True if no call of it was recorded."""
        calls = np.unique(self.columns.name[self.columns.is_of("cuda_runtime")]).tolist()
        return not calls or any(known_names.HAS_GRAPHS.match(self.columns.names[name]) for name in calls)

    # All idle times of at least 30 us in the steps: gaps, and before the first work and after the last.
    idle_times = _of(lambda trace: trace.gaps + trace.edges)
    # What the counters say, each of each device.
    counters = _of(lambda trace: series_of(trace.columns.counters, trace.extent, trace.devices, trace.idle_times))
    # From the start of the first device work to the end of the last.
    span_ns = _of(lambda trace: trace.extent[1] - trace.extent[0])
    # Whether nothing speaks against the figures about the device.
    is_whole = _of(lambda trace: not trace.doubts)
    # Whether device work can be as long as recorded.
    has_durations = _of(lambda trace: not any(code in IMPOSSIBLE for code in trace.doubts))
    # Whether devices take turns and leave little time idle: what one of them waits for is another.
    is_one_system = _of(lambda trace: trace.takes_turns and (trace.scope.utilization or 0.0) > LEAST_IN_TURNS)
    # The share of the steps in which a device was busy.
    utilization_in_steps = _of(lambda trace: events.utilization(trace.steps) if trace.has_gpu else None)
    # The idle time within the scope in which the recording held up the host; of several devices the mean.
    recording_ns = _of(lambda trace: trace.gap_ns(RECORDING))
    # The time within the scope in which the device did what is not recorded; of several devices the mean.
    unseen_ns = _of(lambda trace: trace.gap_ns(NOT_RECORDED))

    @property
    def utilization(self) -> float | None:
        """The share of the scope in which a device was busy, without idle time that the program did not cause."""
        used, wall_ns = self.scope.utilization, self.scope.wall_ns - self.recording_ns - self.unseen_ns
        return None if used is None or wall_ns <= 0 else min(1.0, used * self.scope.wall_ns / wall_ns)

    # The length of the scope without the time that the recording held up the host.
    program_ns = _of(lambda trace: max(0, trace.scope.wall_ns - trace.recording_ns))

    @property
    def settled_ns(self) -> int:
        """The same with the time that the device took for the work of the steps after their end.

        A host that runs ahead only fills the queue in few recorded steps, while the device needs longer for them.
        """
        return max(self.program_ns, self.phases.wall_ns - self.recording_ns)

    # The coefficient of variation of the steps' lengths; None below 3 steps.
    step_variation = _of(lambda trace: _variation(trace.steps) if len(trace.steps) >= 3 else None)
    # The same without the first step, in which the recording starts; None below 3 steps.
    later_variation = _of(lambda trace: _variation(trace.steps[1:]) if len(trace.steps) >= 3 else None)

    @property
    def settled_variation(self) -> float | None:
        """The least of both, and of the device's times for the steps where the host merely runs ahead of it."""
        known = (self.step_variation, self.later_variation, self.pace_variation)
        return min((each for each in known if each is not None), default=None)

    @property
    def can_compile(self) -> bool:
        """Whether torch.compile could help: its kernels are not there yet, and the device can run them."""
        is_too_old = self.compute_capability is not None and self.compute_capability < TENSOR_CORES_SINCE
        is_compiled = self.is_compiled or any(row.name.startswith("triton_") for row in self.kernels.rows)
        return not is_too_old and not is_compiled

    # Whether a backward pass launched work: without one, nothing is trained as far as the trace shows.
    has_backward = _of(lambda trace: trace.phases.times_ns is not None)

    @property
    def has_optimizer(self) -> bool:
        """Whether an optimizer launched kernels, not most of them for many tensors at once: those are fused."""
        phases = self.phases
        return phases.optimizer_kernels > 0 and 2 * phases.multi_tensor_kernels <= phases.optimizer_kernels

    @property
    def is_pinned(self) -> bool:
        """Whether all copies to the device are from pinned memory, as far as their names say so."""
        to_device = [copy.name for copy in self.copies if "-> Device" in copy.name and "HtoD" in copy.name]
        return bool(to_device) and all("Pinned" in name for name in to_device)

    @property
    def pinning(self) -> str:
        """What makes copies come from pinned memory: the loader, if the trace shows one."""
        by_loader = "DataLoader(pin_memory=True)"
        return by_loader if self.waiting.data_names else f"pinned memory (Tensor.pin_memory() or {by_loader})"

    def share_of_scope(self, ns: int) -> float:
        """Return a time as a share of all steps, or of the recording if no steps are marked; 0 if it has no length.

        Without the time that the recording held up the host: no part of it is the program's.
        """
        return min(1.0, ns / self.program_ns) if self.program_ns else 0.0

    def share_of_busy(self, ns: int) -> float:
        """Return a time as a share of that in which a device is busy; 0 if none is."""
        return ns / self.device.busy.total_ns if self.device.busy.total_ns else 0.0

    def is_idle_for(self, ns: int, threshold: float) -> bool:
        """Return whether an idle time is more than a share of the time that the device had for the work of the scope.

        Before its first work a device is idle once, and not in each step, if the host runs ahead of it.
        """
        return bool(self.settled_ns) and ns > threshold * self.settled_ns

    # How long the device computed within the scope; of several devices the sum.
    computed_ns = _of(lambda trace: trace.scope.total.compute_ns)

    def gap_ns(self, *causes: str) -> int:
        """Return the idle time of these causes within the scope; of several devices the mean."""
        return sum(self.idle_ns_by_cause.get(cause, 0) for cause in causes) // max(1, len(self.devices))

    def reads_gap_ns(self, *causes: str) -> int:
        """Return the idle time that reads from the device caused, of these causes or of any that reads can have.

        A read is behind no more than the time that the host spent in reads.
        """
        chosen = [
            place
            for place in self.idle_times
            if place.follows_read and place.next_name  # after the last work there is none that a read could delay
        ]
        among = [cause for cause in AFTER_READ if not causes or cause in causes]
        chosen_ns = sum(place.ns_of(*among) for place in chosen) // max(1, len(self.devices))
        return min(chosen_ns, self.waiting.read_ns)

    def phase_share(self, phase: str) -> float | None:
        """Return the share of the device's time for the steps that a phase takes; None if that is unknown."""
        return None if self.phases.times_ns is None else self.share_of_device(self.phases.times_ns[phase])

    def share_of_device(self, ns: int) -> float | None:
        """Return a time of devices as a share of the time that they had for the steps; None if that has no length."""
        wall_ns = self.phases.wall_ns * max(1, len(self.devices))
        return ns / wall_ns if wall_ns and self.has_durations else None

    @property
    def data_share(self) -> float | None:
        """The share of the scope that the host waited for batches; None without a DataLoader in the trace."""
        if not self.waiting.data_names or not self.program_ns:
            return None
        return min(1.0, sum(self.waiting.data_ns) / self.program_ns)

    @property
    def memory_share(self) -> float | None:
        """The peak share of a device's memory that was reserved; None if it is unknown."""
        parts = [
            memory.reserved_peak_bytes / total
            for memory in self.memory
            if memory.reserved_peak_bytes
            and not memory.is_host
            and (total := self.device_bytes.get(int(memory.device)))
        ]
        return max(parts, default=None)

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


def analyse(path: Path) -> Trace:
    """Return the trace in ``path``, as one even if it has several ranks.

    Raises:
        TraceError: The file cannot be read or is not a trace. The message has one line.
    """
    return _analysed(read_columns(path), path)


def analyse_ranks(path: Path) -> list[Trace]:
    """Return the traces in ``path``: one for each rank where a tool joined the files of several, else one.

    Raises:
        TraceError: The file cannot be read or is not a trace. The message has one line.
    """
    columns = read_columns(path)
    ranks = ranks_of(columns.threads)
    if len(ranks) < 2:
        return [_analysed(columns, path)]
    del columns
    return [_analysed(of_rank, path / f"rank{rank}") for rank, of_rank in read_ranks(path, ranks).items()]


def _analysed(columns: Columns, path: Path) -> Trace:
    trace = Trace(columns, path)
    corrected = without_skew(trace)
    return trace if corrected is columns else Trace(corrected, path)
