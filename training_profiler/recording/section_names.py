"""Section names and the small integers that stand for them in the event stream."""

import itertools
from typing import Final

from training_profiler.base.sections import PROFILER, key_of
from training_profiler.base.text import printable

OTHER_NAMES: Final = "(other names)"
INVALID_NAME: Final = "(invalid name)"
MAX_FURTHER_NAMES: Final = 10_000  # distinct names beyond the limit that are counted for the report


class SectionNames:
    """The bounded table of section names; ids count from 1, 0 stands for "no section"."""

    def __init__(self, limit: int = 500) -> None:
        self.limit = limit
        self.names: dict[int, str] = {0: ""}
        self.invalid_count = 0
        self.invalid_example = ""
        self.further_names: set[int] = set()  # hashes, since names may be of any length
        self._ids: dict[str, int] = {}
        self._next_id = itertools.count(1).__next__

    def use_limit(self, most: int) -> None:
        """Give at most ``most`` names a row of their own from now on."""
        self.limit = most

    def id_of_users(self, name: object) -> int:
        """Return the id of a section that the user named ``name``."""
        return self.id_of(key_of(name) if isinstance(name, str) and name.strip() else name)

    def id_of(self, name: object) -> int:
        """Return the id of a key; an unusable one gets the id of "(invalid name)" or "(other names)"."""
        if not isinstance(name, str) or not name.strip():
            self.invalid_count += 1
            self.invalid_example = self.invalid_example or printable(_show(name))
            return self._id_of_printable(INVALID_NAME)
        known = self._ids.get(name)
        if known is not None:
            return known
        shown = printable(name)
        if shown not in self._ids and shown != PROFILER and len(self.names) > self.limit:
            if len(self.further_names) < MAX_FURTHER_NAMES:
                self.further_names.add(hash(name))
            return self._id_of_printable(OTHER_NAMES)
        return self._id_of_printable(shown)

    def is_kept(self, id: int) -> bool:
        """Return whether this is the id of a single name, so its section can be cached."""
        return self.names[id] not in (OTHER_NAMES, INVALID_NAME)

    def _id_of_printable(self, name: str) -> int:
        known = self._ids.get(name)
        if known is None:
            # Two threads may add the same name: setdefault lets one win, and the other's id stays unused.
            fresh = self._next_id()
            self.names[fresh] = name
            known = self._ids.setdefault(name, fresh)
        return known


def _show(value: object) -> str:
    try:
        return repr(value)
    except Exception:
        return f"<{type(value).__name__}>"
