"""All that is found in one trace, from its columns."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from training_profiler.trace import host, names
from training_profiler.trace.columns import Columns, columns_of
from training_profiler.trace.communication import Collective, collectives
from training_profiler.trace.gaps import Gap, long_gaps
from training_profiler.trace.intervals import gaps, overlap
from training_profiler.trace.kernels import Kernels, kernels_of
from training_profiler.trace.launches import launches_of
from training_profiler.trace.memory import DeviceMemory, SectionAt, memory_of
from training_profiler.trace.nesting import nearest, nesting_of
from training_profiler.trace.operators import Operator, operators
from training_profiler.trace.overview import STEP_NAME, Device, StepParts, device_of, step_parts
from training_profiler.trace.phases import OPTIMIZER, kernels_within, phase_times
from training_profiler.trace.reading import read_events


@dataclass(frozen=True, slots=True)
class Analysis:
    """One trace; times in ns, shares 0 to 1. None is unknown: a trace without work of a device has no idle time."""

    path: Path
    events: int  # in the file, of any sort
    gpu_events: int
    device_names: tuple[str, ...]
    used_devices: tuple[int, ...]
    streams: int
    rank: int | None
    world_size: int | None
    device: Device
    begin_ns: int  # of the first work of a device to the end of the last; of the host's where there is none
    end_ns: int
    exposed_communication_ns: int
    steps: tuple[StepParts, ...]
    gap_lengths_ns: tuple[int, ...]  # all gaps, the longest first
    gaps: tuple[Gap, ...]  # those of 30 us or more, in order of time
    gap_places: tuple[tuple[str, str, str], ...]  # for each: what ended it, its launch's operator, its step
    operators: tuple[Operator, ...]
    operators_by_shape: tuple[Operator, ...]
    kernels: Kernels
    collectives: tuple[Collective, ...]
    copies: tuple[host.Calls, ...]
    synchronizations: tuple[host.Calls, ...]
    allocations: tuple[host.Calls, ...]
    data_loading: host.Calls
    data_loading_in_steps_ns: tuple[int, ...]  # a step
    items: host.Calls
    tensor_copies: host.Calls
    memory: tuple[DeviceMemory, ...]
    phases_ns: dict[str, int] | None  # device time in steps: forward, backward, optimizer
    optimizer_kernels: int  # launched by optimizers, in steps or not
    multi_tensor_kernels: int  # of these, those that update many tensors at once
    compute_capability: int | None  # 80 for 8.0; None unknown, and for devices that are not NVIDIA's

    @property
    def has_gpu(self) -> bool:
        """Whether a device did anything."""
        return self.gpu_events > 0

    @property
    def span_ns(self) -> int:
        """From the first work of a device to the end of the last."""
        return self.end_ns - self.begin_ns

    @property
    def in_steps_ns(self) -> int:
        """The length of all steps."""
        return sum(step.wall_ns for step in self.steps)

    @property
    def utilization_in_steps(self) -> float | None:
        """The part of the steps in which a device worked."""
        if not self.has_gpu or not self.in_steps_ns:
            return None
        return 1 - sum(step.idle_ns for step in self.steps) / self.in_steps_ns

    @property
    def step_variation(self) -> float | None:
        """The coefficient of variation of the steps' lengths; None below 3 steps."""
        if len(self.steps) < 3:
            return None
        lengths = np.array([step.wall_ns for step in self.steps], np.float64)
        return float(lengths.std(ddof=1) / lengths.mean()) if lengths.mean() else None


def analyse(path: Path) -> tuple[Analysis, Columns]:
    """Return what is found in the trace in ``path``, and its columns.

    Raises:
        TraceError: it cannot be read, or is no trace; the message is one line.
    """
    raw = read_events(path)
    count = len(raw.events)
    columns = columns_of(raw, str(path))
    del raw  # which is larger than the columns
    return analyse_columns(columns, path, count), columns


def analyse_columns(columns: Columns, path: Path, events: int) -> Analysis:
    """Return what is found in a trace whose file has so many events of any sort."""
    nesting = nesting_of(columns, columns.is_of("cpu_op", "user_annotation", "cuda_runtime"))
    launches = launches_of(columns, nesting)
    is_section = columns.is_of("user_annotation") & ~columns.named(lambda name: name.startswith(STEP_NAME))
    sections = nearest(nesting, is_section)
    device = device_of(columns)
    steps = tuple(step_parts(columns, device))
    found_gaps = tuple(long_gaps(columns, device, launches))
    between = gaps(device.busy)
    gpu_rows = np.flatnonzero(columns.is_gpu())
    rows = gpu_rows if len(gpu_rows) else np.arange(len(columns.begin_ns))
    of_optimizer = kernels_within(columns, nesting, launches, OPTIMIZER)
    all_operators = tuple(operators(columns, nesting, launches, sections))
    return Analysis(
        path=path,
        events=events,
        gpu_events=len(gpu_rows),
        device_names=columns.device_names,
        used_devices=tuple(sorted(set(columns.device[gpu_rows].tolist()) - {-1})),
        streams=len(set(zip(columns.device[gpu_rows].tolist(), columns.stream[gpu_rows].tolist(), strict=True))),
        rank=columns.rank,
        world_size=columns.world_size,
        device=device,
        begin_ns=int(columns.begin_ns[rows].min()),
        end_ns=int(columns.end_ns[rows].max()),
        exposed_communication_ns=device.communication.total_ns - overlap(device.communication, device.compute),
        steps=steps,
        gap_lengths_ns=tuple(sorted((between.end_ns - between.begin_ns).tolist(), reverse=True)),
        gaps=found_gaps,
        gap_places=tuple(_place(columns, launches.operator, steps, gap) for gap in found_gaps),
        operators=all_operators,
        operators_by_shape=tuple(operators(columns, nesting, launches, sections, has_shapes=True)),
        kernels=kernels_of(columns, launches),
        collectives=tuple(collectives(columns, device)),
        copies=tuple(host.copies(columns)),
        synchronizations=tuple(host.synchronizations(columns)),
        allocations=tuple(host.allocations(columns)),
        data_loading=host.data_loading(columns),
        data_loading_in_steps_ns=host.data_loading_in(columns, [(step.begin_ns, step.end_ns) for step in steps]),
        items=host.operators_named(columns, *host.ITEM[:1]),
        tensor_copies=host.operators_named(columns, *host.COPY),
        memory=tuple(memory_of(columns, steps, SectionAt(columns, is_section))),
        phases_ns=phase_times(columns, nesting, launches, steps),
        optimizer_kernels=len(of_optimizer),
        multi_tensor_kernels=int(columns.named(names.MULTI_TENSOR.search)[of_optimizer].sum()),
        compute_capability=columns.compute_capability,
    )


def _place(columns: Columns, operator: np.ndarray, steps: tuple[StepParts, ...], gap: Gap) -> tuple[str, str, str]:
    row = int(operator[gap.next_row])
    step = next((step.name for step in steps if step.begin_ns <= gap.begin_ns < step.end_ns), "")
    return columns.names[columns.name[gap.next_row]], "" if row < 0 else columns.names[columns.name[row]], step
