"""Section names and the small integers that stand for them in the event stream."""

import itertools
import zlib
from typing import Final

from training_profiler.base.sections import (
    LINES_IN_WORKERS,
    NESTED_SECTIONS,
    OTHER,
    OUTSIDE_STEPS_SECTIONS,
    PROFILER,
    WITHIN,
)
from training_profiler.base.text import MAX_NAME_LENGTH, printable

USERS: Final = "user:"  # in a key, before a name of the user's that a row of ours has, or could have
OTHER_NAMES: Final = "(other names)"
INVALID_NAME: Final = "(invalid name)"
MAX_FURTHER_NAMES: Final = 10_000  # distinct names beyond the limit that are counted for the report
_OWN: Final = frozenset((OTHER, PROFILER.strip("()"), LINES_IN_WORKERS, *NESTED_SECTIONS))
_OUTER: Final = frozenset((*OUTSIDE_STEPS_SECTIONS, PROFILER))  # rows of sections inside these begin with their names
_CHECKSUM_LENGTH: Final = 9  # "~" and eight digits


def key_of(name: str) -> str:
    """Return the key in JSON, journals and metrics of a section that the user named ``name``.

    No two printable names have the same key, and no name has a key of ours. It has at most ``MAX_NAME_LENGTH``
    characters: a longer one is cut, and ends with a checksum of the name.
    """
    key = USERS + name if _is_reserved(name) else name
    shown = printable(key)
    if printable(key, MAX_NAME_LENGTH + 1) == shown:
        return shown
    checksum = zlib.crc32(name.encode(errors="surrogatepass"))
    return f"{printable(key, MAX_NAME_LENGTH - _CHECKSUM_LENGTH)}~{checksum:08x}"


def name_of(key: str) -> str:
    """Return the name of a section's key as the user wrote it; the key of a section of ours as it is."""
    name = key.removeprefix(USERS)
    return name if _is_reserved(name) else key


def _is_reserved(name: str) -> bool:
    is_within = WITHIN in name and name.partition(WITHIN)[0] in _OUTER
    return name in _OWN or is_within or name[:1] + name[-1:] == "()" or name.startswith(USERS)


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
