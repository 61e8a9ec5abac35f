"""Sections outside training steps, and the sections inside them."""

from typing import Final

import numpy as np

from training_profiler.aggregation.span_matching import OutsideSections
from training_profiler.aggregation.totals import rows_for
from training_profiler.recording.section_names import SectionNames
from training_profiler.snapshot.snapshot import PROFILER
from training_profiler.tables.sections import OUTSIDE_STEPS_SECTIONS, WITHIN

# Work between training steps makes no step longer, wherever in the loop it is called.
OUTSIDE_SECTIONS: Final = (*OUTSIDE_STEPS_SECTIONS, PROFILER)


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
            self._table = np.zeros(rows_for(2 * len(names)), np.bool_)
            self._known = 0
        if self._known != len(names):
            self._table[[id for id, name in list(self._names.names.items()) if name in OUTSIDE_SECTIONS]] = True
            self._known = len(names)
        return OutsideSections(self._table, bool(self._table.any()), self.name_within)

    def name_within(self, outer: int, id: int) -> int:
        """Return the id for section ``id`` inside section ``outer``, which has a row of its own."""
        names = self._names.names
        return id if names[id] == PROFILER else self._names.id_of(names[outer] + WITHIN + names[id])
