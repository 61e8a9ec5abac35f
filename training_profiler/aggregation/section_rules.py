"""Inferred sections yield to manual sections."""

from collections import Counter
from collections.abc import Callable

import numpy as np

from training_profiler.aggregation.span_matching import Events, OutsideSections
from training_profiler.base.sections import OUTSIDE_SECTIONS, OUTSIDE_STEPS_SECTIONS, PROFILER, STEP_PARTS, WITHIN
from training_profiler.recording.event_codes import DISCARDED, INFERRED, SECTION_MASK
from training_profiler.recording.section_names import SectionNames
from training_profiler.statistics.arrays import Bools, Ints


class OutsideSteps:
    """Knows the ids of these sections, also of names that are added later."""

    def __init__(self, names: SectionNames) -> None:
        self._names = names
        self._table = np.zeros(1, np.bool_)
        self._known = 0  # number of names in the table

    def current(self) -> OutsideSections:
        """Return the sections outside steps among the names so far."""
        names = self._names.names
        if len(self._table) < len(names) + 1:  # there are new names
            self._table = np.zeros(2 * len(names) + 16, np.bool_)
            self._known = 0
        if self._known != len(names):
            self._table[[id for id, name in list(self._names.names.items()) if name in OUTSIDE_SECTIONS]] = True
            self._known = len(names)
        return OutsideSections(self._table, bool(self._table.any()), self.name_within)

    def name_within(self, outer: int, id: int) -> int:
        """Return the id for section ``id`` inside section ``outer``, which has a row of its own."""
        names = self._names.names
        return id if names[id] == PROFILER else self._names.id_of(names[outer] + WITHIN + names[id])


class SectionKinds:
    """A number for each section, also of names that are added later.

    Args:
        names: of the sections by their ids.
        kind_of: returns the number for a name; that of no section is "".
    """

    def __init__(self, names: SectionNames, kind_of: Callable[[str], int]) -> None:
        self._names, self._kind_of = names, kind_of
        self._kinds = np.zeros(0, np.int64)
        self._known = 0  # number of names in the table

    def of(self, ids: Ints) -> Ints:
        """Return the numbers of these sections, in a new array."""
        if self._known != len(self._names.names):
            known = list(self._names.names.items())  # the training thread may add names meanwhile
            self._known = len(known)
            self._kinds = np.zeros(max(id for id, _ in known) + 1, np.int64)
            for id, name in known:
                self._kinds[id] = self._kind_of(name)
        return self._kinds[ids]


STEP_PART, OUTSIDE = 1, 2  # manual sections of these kinds hide inferred ones; other names are of kind 0


class InferredSectionFilter:
    """Drops inferred events that a manual section already covers, and removes the mark from the others.

    A manual section that is part of a step, such as ``forward_pass``, hides all inferred sections inside it. A manual
    section outside steps, such as validation, hides only inferred sections that are outside steps as well.
    """

    def __init__(self, names: SectionNames, is_needed: bool = False) -> None:
        self.is_needed = is_needed  # whether this run has inferred sections
        self.spans = 0  # inferred ones, as many as have ended
        self._open: dict[int, tuple[int, int]] = {}  # thread id -> open manual ones: (step parts, outside steps)
        self._dropped: dict[int, Counter[int]] = {}  # thread id -> dropped enters without an exit so far
        self._kinds = SectionKinds(names, _kind_of)

    def admit(self, thread_id: int, events: Events) -> Events:
        """Return the events of thread ``thread_id`` that count, with plain section ids."""
        if not self.is_needed or not len(events.codes):
            return events
        codes = np.abs(events.codes)
        is_unaffected = thread_id not in self._open and thread_id not in self._dropped
        if is_unaffected and codes.max() < INFERRED and not self._kinds.of(codes).any():  # a user's own sections alone
            return events
        mark = codes & INFERRED
        is_inferred = mark != 0
        self.spans += int(np.count_nonzero(is_inferred & (events.codes < 0)))
        plain = np.where(events.codes > 0, events.codes - mark, events.codes + mark)
        manual = codes[np.flatnonzero(~is_inferred)] & SECTION_MASK
        if is_unaffected and not self._kinds.of(manual).any():  # as in nearly all runs
            return Events(events.times_ns, plain)
        ids = codes & SECTION_MASK
        sign = np.sign(events.codes) * ~is_inferred
        kinds = self._kinds.of(ids)
        is_outside = kinds == OUTSIDE
        steps_before, outside_before = self._open.pop(thread_id, (0, 0))
        in_step = (sign * (kinds == STEP_PART)).cumsum() + steps_before
        in_outside = (sign * is_outside).cumsum() + outside_before
        still_open = (max(0, int(in_step[-1])), max(0, int(in_outside[-1])))
        if still_open != (0, 0):
            self._open[thread_id] = still_open
        covered = (in_step > 0) | ((in_outside > 0) & is_outside)
        kept = ~(is_inferred & covered)
        if thread_id in self._dropped or not kept.all():
            self._keep_in_pairs(thread_id, events.codes, is_inferred, kept)
        return Events(events.times_ns[kept], plain[kept])

    def _keep_in_pairs(self, thread_id: int, codes: Ints, is_inferred: Bools, kept: Bools) -> None:
        """Keep the exit of an inferred span exactly if its enter was kept, whatever manual sections lie in between."""
        if thread_id not in self._dropped and _are_pairs(codes[is_inferred], kept[is_inferred]):
            return
        dropped = self._dropped.pop(thread_id, Counter())
        enters: dict[int, list[bool]] = {}  # code -> for each open span, whether its enter was kept
        for row in np.flatnonzero(is_inferred).tolist():
            code = int(codes[row])
            if code > 0:
                enters.setdefault(code, []).append(bool(kept[row]))
                continue
            code = -code % DISCARDED
            if enters.get(code):
                kept[row] = enters[code].pop()
            else:  # entered in an earlier batch
                kept[row] = not dropped[code]
                dropped[code] -= not kept[row]
        for code, were_kept in enters.items():
            dropped[code] += were_kept.count(False)
        if +dropped:
            self._dropped[thread_id] = +dropped


def _kind_of(name: str) -> int:
    if name in STEP_PARTS:
        return STEP_PART
    return OUTSIDE if name in OUTSIDE_STEPS_SECTIONS else 0


def _are_pairs(codes: Ints, kept: Bools) -> bool:
    """Return whether each enter is followed by its exit before the next of its kind, and both are kept, or neither."""
    spans = np.abs(codes) % DISCARDED
    order = spans.argsort(kind="stable")
    spans, is_enter, kept = spans[order], codes[order] > 0, kept[order]
    if len(spans) % 2 or not is_enter[::2].all() or is_enter[1::2].any():
        return False
    return bool((spans[::2] == spans[1::2]).all() and (kept[::2] == kept[1::2]).all())
