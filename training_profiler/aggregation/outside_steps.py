"""Sections that are no part of a training step, and what is inside of them."""

from typing import Final

import numpy as np

from training_profiler.aggregation.span_matching import OutsideSections
from training_profiler.aggregation.totals import rows_for
from training_profiler.recording.known_sections import OUTSIDE_STEPS_SECTIONS
from training_profiler.recording.section_names import SectionNames
from training_profiler.snapshot.snapshot import PROFILER

WITHIN: Final = "/"  # validation_epoch/forward_pass: the forward passes of validation
# Work between training steps, wherever in the loop it is called; it makes no step longer.
APART: Final = (*OUTSIDE_STEPS_SECTIONS, PROFILER)


class OutsideSteps:
    """Knows them by their ids, also of names that come later."""

    def __init__(self, names: SectionNames) -> None:
        self._names = names
        self._table = np.zeros(1, np.bool_)
        self._known = 0  # how many names the table was made from

    def current(self) -> OutsideSections:
        """Return those of the names seen so far."""
        names = self._names.names
        if len(self._table) < len(names) + 1:  # there are new names
            self._table = np.zeros(rows_for(2 * len(names)), np.bool_)
            self._known = 0
        if self._known != len(names):
            self._table[[id for id, name in list(self._names.names.items()) if name in APART]] = True
            self._known = len(names)
        return OutsideSections(self._table, bool(self._table.any()), self.name_within)

    def name_within(self, root: int, id: int) -> int:
        """Return the id of section ``id`` inside of section ``root``: its spans there are told apart."""
        names = self._names.names
        return id if names[id] == PROFILER else self._names.id_of(names[root] + WITHIN + names[id])
