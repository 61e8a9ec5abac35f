"""Memory over the trace, from the allocator's events: peaks, growth over steps and reserved but unused memory."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import numpy as np

from training_profiler.trace_analysis.device_activity import StepParts
from training_profiler.trace_analysis.load.columns import Bools, Columns
from training_profiler.trace_analysis.timeline import Timeline

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
