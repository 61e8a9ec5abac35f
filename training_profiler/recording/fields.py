"""Attributes that the fast paths in C (native/fast_path.h) read as Python does, without a look-up by name."""

from typing import TYPE_CHECKING, Any, Final

from training_profiler.base.switch import refuses_native
from training_profiler.recording.implementation import native_module

FIELDS, NUMBERS = 20, 8  # as in native/native.h


class SlotFields:
    """The same as ``Fields`` of the recorder in C."""

    __slots__ = (*(f"at{at}" for at in range(FIELDS)), *(f"number{at}" for at in range(NUMBERS)))


def _native_fields() -> Any:
    try:
        return None if refuses_native() else native_module().Fields
    except ImportError:
        return None


_NATIVE: Final = _native_fields()
IS_NATIVE: Final = _NATIVE is not None

if TYPE_CHECKING or not IS_NATIVE:

    class Fields(SlotFields):
        """The base of a class whose attributes may be made by ``field``."""

        __slots__ = ()
else:
    Fields = _NATIVE


def field(number: int) -> Any:
    """Return an attribute of a class derived from ``Fields``; C finds it by its number."""
    return vars(Fields if IS_NATIVE else SlotFields)[f"at{number}"]


def hidden_field() -> Any:
    """Return attribute 0 as one that C may set not before Python code reads it: the state of a call under way."""
    return vars(Fields)["shown0"] if IS_NATIVE else vars(SlotFields)["at0"]


def number(at: int) -> Any:
    """Return the same for a number that C counts, of 64 bits; Python takes longer to read it."""
    return vars(Fields if IS_NATIVE else SlotFields)[f"number{at}"]
