"""The integers of the event stream, and the attributes that the recorder in C reads and sets (native/fronts.c).

An event is a time in ns and a code. The code of an enter is the section's id plus the bits below; an exit has the
negative of its enter. ``LOADER + k`` is neither: from there on, batches come from data loader ``k``.
"""

from typing import Any, Final

INFERRED: Final = 1 << 20  # recorded by a patch, not by the user
TIME_ONLY: Final = 1 << 21  # the span adds time to its section, but does not count as an execution
SECTION_MASK: Final = INFERRED - 1  # leaves the section's id of an enter's code
DISCARDED: Final = 1 << 24  # subtracted from the code of an exit whose span does not count, e.g. of an empty fetch
LOADER: Final = 1 << 26

STEP_END, EPOCH_BEGIN, EPOCH_END, LOOP_BEGIN = range(4)  # kinds of marks


def time_only(code: int) -> int:
    """Return the code of a span that adds time to the section of ``code`` without counting."""
    return code | TIME_ONLY


def discarded_exit(code: int) -> int:
    """Return the code of an exit that ends the span of the enter ``code`` without counting it."""
    return -code - DISCARDED


def is_inferred(code: int) -> bool:
    """Return whether a patch recorded the enter or exit ``code``."""
    return bool(abs(code) & INFERRED)


def section_id(code: int) -> int:
    """Return the section's id of an enter or an exit."""
    return abs(code) & SECTION_MASK


FIELDS: Final = 8  # as in native/fronts.c


class Fields:
    """The base of a class whose attributes may be made by ``field``. C finds them behind one another."""

    __slots__ = tuple(f"at{at}" for at in range(FIELDS))


def field(number: int) -> Any:
    """Return an attribute of a class derived from ``Fields``; C finds it by its number."""
    return vars(Fields)[f"at{number}"]
