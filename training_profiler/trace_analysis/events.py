"""What every analysis of a trace begins with: its events, what is within what, what launched what, and its steps."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, TypeVar

import numpy as np

from training_profiler.base.sections import DATA_LOADING, OPTIMIZER_STEP
from training_profiler.base.units import NS_PER_MS, counted
from training_profiler.trace_analysis import known_names
from training_profiler.trace_analysis.columns import NONE, Bools, Columns, Intervals, Ints, Timeline, summed
from training_profiler.trace_analysis.launches import launches_of, lost_launches, nesting_of

# How torch marks a wait for a batch, and our own sections.
WAITS_FOR_BATCH: Final = re.compile(rf"^enumerate\(DataLoader\)|^{DATA_LOADING}$")


def bounds_of(parts: Sequence[Any]) -> tuple[Ints, Ints]:
    """Return the begins and the ends of steps, gaps or other parts of the time."""
    begins, ends = np.array([(part.begin_ns, part.end_ns) for part in parts], np.int64).reshape(-1, 2).T
    return begins, ends


def step_at(parts: Sequence[Any], at_ns: Ints) -> Ints:
    """Return the index of the step that each time is in; -1 for none. Steps are in order of their begin."""
    begins, ends = bounds_of(parts)
    if not len(begins):
        return np.full(len(at_ns), NONE, np.int64)
    place = np.searchsorted(begins, at_ns, side="right") - 1
    return np.where((place >= 0) & (at_ns < ends[np.maximum(place, 0)]), place, NONE)


@dataclass(frozen=True, slots=True)
class Device:
    """When one device, or any device of the file, was active."""

    compute: Intervals  # kernels without communication
    communication: Intervals
    copies: Intervals  # copies and fills
    busy: Intervals


PARTS: Final = ("compute_ns", "exposed_communication_ns", "exposed_copies_ns", "idle_ns")  # of a step


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
class CallTimes:
    """All calls of an operator, or those with the same input shapes, or all times at a place of the code; ns."""

    name: str
    calls: int
    host_self_ns: int  # without inner operators or places; the sum over threads
    host_total_ns: int  # what is within itself counts once
    device_self_ns: int  # of work that was launched there
    device_total_ns: int  # also of work launched by inner operators or places
    idle_ns: int = 0  # of the gaps of 30 us or more at a place
    section: str = ""  # of most calls of an operator; "" for none
    shapes: str = ""  # of the inputs of an operator, as recorded


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


def sum_of(steps: Sequence[StepParts]) -> StepParts:
    """Return the parts of all steps together, as those of one step that begins at 0."""
    sums = (sum(getattr(step, part) for step in steps) for part in ("wall_ns", *PARTS))
    return StepParts("", 0, *sums)


def utilization(steps: Sequence[StepParts]) -> float | None:
    """Return the share of the steps in which the device was busy; None without steps."""
    all_of_them = sum_of(steps)
    return 1 - all_of_them.idle_ns / all_of_them.wall_ns if all_of_them.wall_ns else None


def device_of(columns: Columns, communicates: Bools, is_current: Bools | None = None) -> Device:
    """Return the activity of all devices, or of the one whose events ``is_current`` selects."""
    is_current = columns.is_gpu() if is_current is None else is_current & columns.is_gpu()
    is_kernel = columns.is_of("kernel") & is_current
    compute = columns.span(is_kernel & ~communicates)
    communication = columns.span(communicates & is_current)
    copies = columns.span(is_current & ~is_kernel)
    return Device(compute, communication, copies, (compute | communication | copies))


def devices_of(columns: Columns, communicates: Bools, everything: Device) -> tuple[OneDevice, ...]:
    """Return each active device of the file, by index; ``everything`` is all of them together."""
    is_gpu = columns.is_gpu()
    used = np.unique(columns.device[is_gpu]).tolist()
    devices = []
    for index in used:
        device = everything if len(used) == 1 else device_of(columns, communicates, columns.device == index)
        devices.append(OneDevice(index, columns.name_of_device(index), device, step_parts(columns, device)))
    return tuple(devices)


LEAST_TURN: Final = 0.1  # of the time in which any device is busy
MOST_AT_ONCE: Final = 0.1  # of the same, in which another device is busy too


def take_turns(devices: Sequence[OneDevice], busy: Intervals) -> bool:
    """Return whether one device works while the others wait, as those of a model that is divided among them do."""
    times_ns = [device.device.busy.total_ns for device in devices]
    has_turn = [ns >= LEAST_TURN * busy.total_ns for ns in times_ns]
    return sum(has_turn) > 1 and sum(times_ns) <= (1 + MOST_AT_ONCE) * busy.total_ns


def step_parts(columns: Columns, device: Device) -> tuple[StepParts, ...]:
    """Return the parts of each step that the profiler marked on the host; they add up to it exactly."""
    rows = np.flatnonzero(columns.is_step())
    names = [columns.names[i] for i in columns.name[rows].tolist()]
    return parts_of(device, names, columns.begin_ns[rows], columns.end_ns[rows])


def parts_of(device: Device, labels: Sequence[str], begin_ns: Ints, end_ns: Ints) -> tuple[StepParts, ...]:
    """Return the parts of each window; they add up to it exactly."""
    both = device.compute | device.communication  # these two, then also copies, then all of the window
    ends_of_parts = [claimed.within(begin_ns, end_ns) for claimed in (device.compute, both, device.busy)]
    numbers = np.stack([begin_ns, end_ns, *np.diff([*ends_of_parts, end_ns - begin_ns], axis=0, prepend=0)])
    return tuple(StepParts(label, *row) for label, row in zip(labels, numbers.T.tolist(), strict=True))


def beside(columns: Columns, rows: Ints, idle: Intervals) -> tuple[Ints, Ints]:
    """Return the work of ``rows``, which are in order of time, that ends last before each idle time, and the next."""
    by_end = rows[np.argsort(columns.end_ns[rows], kind="stable")]
    preceding = by_end[np.searchsorted(columns.end_ns[by_end], idle.begin_ns, side="right") - 1]
    return preceding, rows[np.searchsorted(columns.begin_ns[rows], idle.end_ns)]


OPTIMIZER_MARK: Final = "Optimizer.step#"
LEAST_RUNS: Final = 3  # of an annotation that is taken for one repetition of the loop


@dataclass(frozen=True)
class Scope:
    """The windows that rules look at, each with its parts on the device."""

    parts: tuple[StepParts, ...]
    is_steps: bool
    recurs: str  # without steps, an annotation of the training thread that recurs as the loop does; "" for none
    repetitions: int  # of steps, or of that annotation; 0 if unknown

    @cached_property
    def total(self) -> StepParts:
        """All windows together."""
        return sum_of(self.parts)

    @property
    def wall_ns(self) -> int:
        """The total length of the windows."""
        return self.total.wall_ns

    @property
    def end_ns(self) -> int:
        """The end of the last window."""
        return max(part.end_ns for part in self.parts)

    @property
    def utilization(self) -> float | None:
        """The share of the windows in which a device was busy; None if they have no length."""
        return utilization(self.parts)

    @property
    def time(self) -> str:
        """What shares are of, in words."""
        return "step time" if self.is_steps else "the recording"

    @property
    def extent(self) -> str:
        """The windows in words: "6 steps"."""
        return counted(len(self.parts), "step") if self.is_steps else f"{self.wall_ns / NS_PER_MS:.1f} ms recorded"

    @property
    def windows(self) -> Intervals:
        """The time of all windows, each moment once."""
        return Intervals.of(*self.bounds)

    @property
    def bounds(self) -> tuple[Ints, Ints]:
        """The begins and the ends of the windows."""
        return bounds_of(self.parts)

    def within(self, intervals: Intervals) -> int:
        """Return the length of the intervals within the windows."""
        return int(intervals.within(self.windows.begin_ns, self.windows.end_ns).sum())


def _repetition(columns: Columns) -> tuple[str, int]:
    """Return the annotation that recurs with the loop, and how often ("", 0 for none).

    Updates come first, then batches, then whatever takes longest.
    """
    rows = np.flatnonzero(columns.is_of("user_annotation") & (columns.thread == columns.main_thread))
    counts = np.bincount(columns.name[rows], minlength=len(columns.names))
    lengths = summed(columns.name[rows], columns.length_ns[rows], len(columns.names))
    often = [i for i in np.unique(columns.name[rows]).tolist() if counts[i] >= LEAST_RUNS]
    if not often:
        return "", 0

    def rank(i: int) -> tuple[int, int]:
        name = columns.names[i]
        is_update = name.startswith(OPTIMIZER_MARK) or name == OPTIMIZER_STEP
        return 2 if is_update else 1 if WAITS_FOR_BATCH.search(name) else 0, int(lengths[i])

    best = max(often, key=rank)
    return columns.names[best], int(counts[best])


HOST: Final = "host"
STEPS_NEEDED: Final = 3  # for growth: the first of a window may still fill caches
GROWS_BY: Final = 0.02  # of what is allocated, from the second step to the last, and in every step


@dataclass(frozen=True, slots=True)
class DeviceMemory:
    """Memory of an allocator, in bytes; None if unknown."""

    device: str  # "host", "0", "1"
    events: int
    peak_bytes: int  # allocated; above the level at the first event if the trace has only changes
    is_peak_relative: bool
    peak_at_ns: int
    peak_step: str  # "" outside of steps
    peak_section: str
    reserved_peak_bytes: int | None
    unused_at_peak_bytes: int | None  # reserved and not allocated, at the peak
    step_end_bytes: tuple[int, ...]  # allocated at the ends of steps
    grows: bool  # with every step after the first

    @property
    def is_host(self) -> bool:
        """Whether it is memory of the host."""
        return self.device == HOST


def memory_of(columns: Columns, steps: Sequence[StepParts], sections: Timeline) -> list[DeviceMemory]:
    """Return the memory of each allocator, devices first; empty if memory was not recorded."""
    memory = columns.memory
    kinds = np.where(memory.device_type == 0, -1, memory.device)
    return [
        _of_allocator(columns, kinds == kind, HOST if kind < 0 else str(kind), steps, sections)
        for kind in sorted(set(kinds.tolist()), key=lambda kind: (kind < 0, kind))
    ]


def _of_allocator(
    columns: Columns, which: Bools, device: str, steps: Sequence[StepParts], sections: Timeline
) -> DeviceMemory:
    memory = columns.memory
    at_ns = memory.at_ns[which]
    recorded = memory.allocated[which]
    is_recorded = bool((recorded >= 0).all())
    level = recorded if is_recorded else np.cumsum(memory.change[which])
    peak = int(level.argmax())
    section = int(sections.at(at_ns[peak : peak + 1])[0])
    reserved = memory.reserved[which]
    has_reserved = is_recorded and device != HOST and bool((reserved >= 0).all()) and bool(reserved.any())
    ends = tuple(int(level[i - 1]) for i in np.searchsorted(at_ns, [step.end_ns for step in steps], "right") if i)
    return DeviceMemory(
        device=device,
        events=len(at_ns),
        peak_bytes=int(level[peak]),
        is_peak_relative=not is_recorded,
        peak_at_ns=int(at_ns[peak]),
        peak_step=next((step.name for step in steps if step.begin_ns <= at_ns[peak] < step.end_ns), ""),
        peak_section="" if section < 0 else columns.names[columns.name[section]],
        reserved_peak_bytes=int(reserved.max()) if has_reserved else None,
        unused_at_peak_bytes=int(reserved[peak] - level[peak]) if has_reserved else None,
        step_end_bytes=ends,
        grows=_grows(ends, int(level[peak])),
    )


def _grows(ends: Sequence[int], peak: int) -> bool:
    later = ends[1:]
    if len(later) < STEPS_NEEDED:
        return False
    rises = all(after > before for before, after in pairwise(later))
    return rises and later[-1] - later[0] > GROWS_BY * max(1, peak)


_Answer = TypeVar("_Answer")


def _of(ask: "Callable[[TracedEvents], _Answer]") -> cached_property[_Answer]:
    return cached_property(ask)


class TracedEvents:
    """The events of a trace, with what several analyses ask of them; times in ns."""

    def __init__(self, columns: Columns, path: Path) -> None:
        self.path = path
        self.columns = columns

    # Which operators, annotations and calls are within which.
    nesting = _of(
        lambda events: nesting_of(events.columns, events.columns.is_of("cpu_op", "user_annotation", "cuda_runtime"))
    )
    # The call, operator and section that launched each work.
    launches = _of(lambda events: launches_of(events.columns, events.nesting))
    # The launches of kernels that are not recorded.
    lost = _of(lambda events: lost_launches(events.columns, events.launches))
    # Which events are kernels that communicate.
    communicates = _of(lambda events: events.columns.named(known_names.communicates, "kernel"))
    # The number of works of devices.
    gpu_events = _of(lambda events: int(events.columns.is_gpu().sum()))
    # Whether the trace contains device work.
    has_gpu = _of(lambda events: events.gpu_events > 0)
    # The activity of all devices of the file together.
    device = _of(lambda events: device_of(events.columns, events.communicates))
    # The steps that the profiler marked.
    steps = _of(lambda events: step_parts(events.columns, events.device))

    @cached_property
    def scope(self) -> Scope:
        """What shares are of: the steps, or the whole recording if none is marked."""
        if self.steps:
            return Scope(self.steps, True, "", len(self.steps))
        begin_ns, end_ns = np.array(self.extent, np.int64).reshape(2, 1)
        return Scope(parts_of(self.device, [""], begin_ns, end_ns), False, *_repetition(self.columns))

    @cached_property
    def extent(self) -> tuple[int, int]:
        """The begin of the first device work and the end of the last; of all events without device work."""
        which = self.columns.is_gpu() if self.has_gpu else np.ones(len(self.columns.begin_ns), np.bool_)
        return int(self.columns.begin_ns[which].min()), int(self.columns.end_ns[which].max())

    @cached_property
    def in_scope(self) -> Bools:
        """Which events begin in steps. Without steps, all do: the call that launched the first work precedes it."""
        begins = self.columns.begin_ns
        return step_at(self.steps, begins) != NONE if self.steps else np.ones(len(begins), np.bool_)
