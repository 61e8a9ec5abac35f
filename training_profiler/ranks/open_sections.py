"""The sections that a thread is in, from events that are not drained yet."""

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np

from training_profiler.aggregation.span_matching import Events, read_events
from training_profiler.recording.event_codes import LOADER, SECTION_MASK, is_inferred, section_id
from training_profiler.recording.section import ThreadBuffer

NESTED: Final = 4  # rounds that find spans without others inside; what is left is read one by one


def open_sections(
    buffer: ThreadBuffer, names: Mapping[int, str], before: Sequence[tuple[str, int]] = ()
) -> tuple[tuple[str, ...], int | None]:
    """Return the open sections of a thread, outermost first, and when it entered the last of them.

    Does not wait for the thread, so a section may be missing at the very moment of a drain. The time is None if it is
    unknown.

    Args:
        buffer: of the thread.
        names: of sections, by their id.
        before: the sections that were open at the last drain, and when they were entered.
    """
    stack: list[tuple[str, int | None, bool]] = [(name, at_ns, False) for name, at_ns in before]
    events = buffer.events[:]
    for at_ns, code in _without_leaves(read_events(events[: len(events) // 2 * 2])):
        name = names.get(section_id(code), "")
        if code > 0:
            stack.append((name, at_ns, is_inferred(code)))
            continue
        for row in range(len(stack) - 1, -1, -1):
            if stack[row][0] == name:
                del stack[row]
                break
    manual = next((row for row, section in enumerate(stack) if not section[2]), len(stack))
    kept = [section for row, section in enumerate(stack) if row <= manual or not section[2]]  # manual sections win
    return tuple(name for name, _, _ in kept), kept[-1][1] if kept else None


def _without_leaves(events: Events) -> list[tuple[int, int]]:
    """Return the times and codes without changes of loader, and without spans that nothing is open in.

    An exit that follows an enter of its section ends it, whatever is around both. That leaves little of the thousands
    of steps that may wait for a drain.
    """
    at = np.flatnonzero(np.abs(events.codes) & LOADER == 0)
    for _ in range(NESTED):
        codes = events.codes[at]
        ids = np.abs(codes) & SECTION_MASK
        enters = np.flatnonzero((codes[:-1] > 0) & (codes[1:] < 0) & (ids[:-1] == ids[1:]))
        if not len(enters):
            break
        at = np.delete(at, np.concatenate([enters, enters + 1]))
    return list(zip(events.times_ns[at].tolist(), events.codes[at].tolist(), strict=True))
