"""Attributes that the recorder in C reads and sets without a look-up by name (native/fronts.c)."""

from typing import Any, Final

FIELDS: Final = 7  # as in native/fronts.c


class Fields:
    """The base of a class whose attributes may be made by ``field``. C finds them behind one another."""

    __slots__ = tuple(f"at{at}" for at in range(FIELDS))


def field(number: int) -> Any:
    """Return an attribute of a class derived from ``Fields``; C finds it by its number."""
    return vars(Fields)[f"at{number}"]
