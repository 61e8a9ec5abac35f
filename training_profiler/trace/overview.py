"""Where the device's time goes, by step and over the whole trace; integers of nanoseconds."""

from dataclasses import dataclass

import numpy as np

from training_profiler.trace import names
from training_profiler.trace.columns import Bools, Columns, Ints
from training_profiler.trace.intervals import Intervals, covered, gaps, overlap, together, union

STEP_NAME = "ProfilerStep#"


@dataclass(frozen=True, slots=True)
class Device:
    """Unions of what one device did; or all devices of the file together."""

    compute: Intervals  # kernels that do not communicate
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


def is_communication(columns: Columns) -> Bools:
    """Return which events are kernels that communicate."""
    return columns.is_of("kernel") & columns.named(lambda name: names.kind_of(name) == names.COMMUNICATION)


def device_of(columns: Columns, is_mine: Bools | None = None) -> Device:
    """Return what the devices did, or what one of them did where ``is_mine`` tells its events."""
    is_mine = columns.is_gpu() if is_mine is None else is_mine & columns.is_gpu()
    is_kernel = columns.is_of("kernel") & is_mine
    communicates = is_communication(columns) & is_mine
    compute = _union(columns, is_kernel & ~communicates)
    communication = _union(columns, communicates)
    copies = _union(columns, is_mine & ~is_kernel)
    return Device(compute, communication, copies, together(together(compute, communication), copies))


def _union(columns: Columns, which: Bools) -> Intervals:
    return union(columns.begin_ns[which], columns.end_ns[which])


def step_windows(columns: Columns) -> tuple[list[str], Ints, Ints]:
    """Return names, begins and ends of the steps on the host that the profiler marked."""
    which = columns.named(lambda name: name.startswith(STEP_NAME)) & columns.is_of("user_annotation", "cpu_op")
    rows = np.flatnonzero(which)
    return [columns.names[i] for i in columns.name[rows].tolist()], columns.begin_ns[rows], columns.end_ns[rows]


def step_parts(columns: Columns, device: Device) -> list[StepParts]:
    """Return the parts of each step; they add up to it exactly."""
    labels, begin_ns, end_ns = step_windows(columns)
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


__all__ = ["Device", "StepParts", "covered", "device_of", "gaps", "overlap", "step_parts", "step_windows"]
