"""How a device spends its time, per step and over the whole trace; integer nanoseconds."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from training_profiler.trace_analysis import kernel_names
from training_profiler.trace_analysis.load.columns import Bools, Columns, Ints, distinct
from training_profiler.trace_analysis.timeline import Intervals, covered, together, union


@dataclass(frozen=True, slots=True)
class Device:
    """When one device, or any device of the file, was active."""

    compute: Intervals  # kernels without communication
    communication: Intervals
    copies: Intervals  # copies and fills
    busy: Intervals


@dataclass(frozen=True, slots=True)
class StepParts:
    """One step on the device: four parts that add up to its window."""

    name: str
    begin_ns: int
    end_ns: int
    compute_ns: int
    exposed_communication_ns: int  # not covered by compute
    exposed_copies_ns: int  # covered by neither
    idle_ns: int

    @property
    def wall_ns(self) -> int:
        """The length of the step."""
        return self.end_ns - self.begin_ns


@dataclass(frozen=True, slots=True)
class OneDevice:
    """The activity of one device of the file."""

    index: int
    name: str
    device: Device
    steps: tuple[StepParts, ...]

    @property
    def utilization_in_steps(self) -> float | None:
        """The share of the steps in which it was busy; None without steps."""
        return utilization(self.steps)


def utilization(steps: Sequence[StepParts]) -> float | None:
    """Return the share of the steps in which the device was busy; None without steps."""
    wall_ns = sum(step.wall_ns for step in steps)
    return 1 - sum(step.idle_ns for step in steps) / wall_ns if wall_ns else None


def is_communication(columns: Columns) -> Bools:
    """Return which events are kernels that communicate."""
    return columns.named(kernel_names.communicates, columns.is_of("kernel"), takes_long=True)


def is_communication_apart(columns: Columns, communicates: Bools) -> bool:
    """Return whether nothing else runs on the streams that communicate."""
    is_kernel = columns.is_of("kernel")
    streams = columns.device * (int(columns.stream.max(initial=0)) + 2) + columns.stream
    return not np.isin(streams[is_kernel & ~communicates], streams[communicates]).any()


def device_of(columns: Columns, communicates: Bools, is_current: Bools | None = None) -> Device:
    """Return the activity of all devices, or of the one whose events ``is_current`` selects."""
    is_current = columns.is_gpu() if is_current is None else is_current & columns.is_gpu()
    is_kernel = columns.is_of("kernel") & is_current
    compute = _union(columns, is_kernel & ~communicates)
    communication = _union(columns, communicates & is_current)
    copies = _union(columns, is_current & ~is_kernel)
    return Device(compute, communication, copies, together(together(compute, communication), copies))


def devices_of(columns: Columns, communicates: Bools, everything: Device) -> tuple[OneDevice, ...]:
    """Return each active device of the file, by index; ``everything`` is all of them together."""
    is_gpu = columns.is_gpu()
    used = distinct(columns.device[is_gpu]).tolist()
    devices = []
    for index in used:
        device = everything if len(used) == 1 else device_of(columns, communicates, columns.device == index)
        devices.append(OneDevice(index, columns.name_of_device(index), device, tuple(step_parts(columns, device))))
    return tuple(devices)


def _union(columns: Columns, which: Bools) -> Intervals:
    rows = np.flatnonzero(which)
    return union(columns.begin_ns[rows], columns.end_ns[rows])


def step_windows(columns: Columns) -> tuple[list[str], Ints, Ints]:
    """Return names, begins and ends of the steps that the profiler marked on the host."""
    which = columns.is_step()
    rows = np.flatnonzero(which)
    return [columns.names[i] for i in columns.name[rows].tolist()], columns.begin_ns[rows], columns.end_ns[rows]


def step_parts(columns: Columns, device: Device) -> list[StepParts]:
    """Return the parts of each marked step; they add up to it exactly."""
    return parts_of(device, *step_windows(columns))


def parts_of(device: Device, labels: Sequence[str], begin_ns: Ints, end_ns: Ints) -> list[StepParts]:
    """Return the parts of each window; they add up to it exactly."""
    compute_ns = covered(device.compute, begin_ns, end_ns)
    with_communication = together(device.compute, device.communication)
    computing_or_communicating_ns = covered(with_communication, begin_ns, end_ns)
    busy_ns = covered(device.busy, begin_ns, end_ns)
    return [
        StepParts(label, *numbers)
        for label, *numbers in zip(
            labels,
            begin_ns.tolist(),
            end_ns.tolist(),
            compute_ns.tolist(),
            (computing_or_communicating_ns - compute_ns).tolist(),
            (busy_ns - computing_or_communicating_ns).tolist(),
            (end_ns - begin_ns - busy_ns).tolist(),
            strict=True,
        )
    ]
