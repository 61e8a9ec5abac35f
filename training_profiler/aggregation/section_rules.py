"""Sections that a seam inferred give way to those that the user wrote by hand."""

from collections import Counter

import numpy as np

from training_profiler.aggregation.histogram import Ints
from training_profiler.aggregation.span_matching import Bools, Events
from training_profiler.recording.event_codes import DISCARDED, INFERRED, SECTION_MASK
from training_profiler.recording.known_sections import OUTSIDE_STEPS_SECTIONS, STEP_PARTS
from training_profiler.recording.section_names import SectionNames


class Inferred:
    """Drops inferred events where a section by hand already says what is going on, and unmarks the others.

    Inside a section by hand that has the name of a part of a step nothing is inferred; inside one that is no part of a
    step, such as validation, no other that is none.
    """

    def __init__(self, names: SectionNames, is_needed: bool = False) -> None:
        self.is_needed = is_needed  # whether anything is inferred in this run
        self._names = names
        self._open: dict[int, tuple[int, int]] = {}  # thread serial -> sections by hand that are open: (step, apart)
        self._dropped: dict[int, Counter[int]] = {}  # thread serial -> enters dropped whose exits are still to come

    def admit(self, serial: int, events: Events) -> Events:
        """Return the events of thread ``serial`` that count, with plain section ids."""
        if not self.is_needed or not len(events.codes):
            return events
        codes = np.abs(events.codes)
        is_inferred = (codes & INFERRED) != 0
        ids = codes & SECTION_MASK
        sign = np.sign(events.codes)
        steps_before, apart_before = self._open.pop(serial, (0, 0))
        in_step = np.cumsum(sign * self._by_hand(ids, is_inferred, STEP_PARTS)) + steps_before
        in_apart = np.cumsum(sign * self._by_hand(ids, is_inferred, OUTSIDE_STEPS_SECTIONS)) + apart_before
        still_open = (max(0, int(in_step[-1])), max(0, int(in_apart[-1])))
        if still_open != (0, 0):
            self._open[serial] = still_open
        covered = (in_step > 0) | ((in_apart > 0) & np.isin(ids, self._ids(OUTSIDE_STEPS_SECTIONS)))
        kept = ~(is_inferred & covered)
        if serial in self._dropped or not kept.all():
            self._keep_in_pairs(serial, events.codes, is_inferred, kept)
        plain = events.codes - sign * np.where(is_inferred, INFERRED, 0)
        return Events(events.times_ns[kept], plain[kept])

    def _keep_in_pairs(self, serial: int, codes: Ints, is_inferred: Bools, kept: Bools) -> None:
        """Let the exit of an inferred span be kept where its enter was, whatever by hand began or ended in between."""
        dropped = self._dropped.pop(serial, Counter())
        enters: dict[int, list[bool]] = {}  # code -> whether they were kept, of those open
        for row in np.flatnonzero(is_inferred).tolist():
            code = int(codes[row])
            if code > 0:
                enters.setdefault(code, []).append(bool(kept[row]))
                continue
            code = -code % DISCARDED
            if enters.get(code):
                kept[row] = enters[code].pop()
            else:  # it was entered in an earlier batch
                kept[row] = not dropped[code]
                dropped[code] -= not kept[row]
        for code, were_kept in enters.items():
            dropped[code] += were_kept.count(False)
        if +dropped:
            self._dropped[serial] = +dropped

    def _by_hand(self, ids: Ints, is_inferred: Bools, names: tuple[str, ...]) -> Bools:
        return np.isin(ids, self._ids(names)) & ~is_inferred

    def _ids(self, names: tuple[str, ...]) -> Ints:
        return np.array([id for id, name in list(self._names.names.items()) if name in names], np.int64)
