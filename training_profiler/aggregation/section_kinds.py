"""What the name of a section says of it, looked up by the section's id."""

from collections.abc import Callable

import numpy as np

from training_profiler.recording.section_names import SectionNames
from training_profiler.statistics.arrays import Ints


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
