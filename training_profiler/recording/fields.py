"""Attributes that the recorder in C reads and sets without a look-up by name (native/usual_calls.h)."""

import contextlib
from typing import TYPE_CHECKING, Any, Final

from training_profiler.base.switch import refuses_native
from training_profiler.recording.implementation import native_module

FIELDS: Final = 8  # as in native/usual_calls.h


class SlotFields:
    """The same as ``Fields`` of the recorder in C."""

    __slots__ = tuple(f"at{at}" for at in range(FIELDS))


_NATIVE: Any = None
with contextlib.suppress(Exception):  # without the recorder in C; a setting that cannot be read is reported elsewhere
    _NATIVE = None if refuses_native() else native_module().Fields

if TYPE_CHECKING or _NATIVE is None:

    class Fields(SlotFields):
        """The base of a class whose attributes may be made by ``field``."""

        __slots__ = ()
else:
    Fields = _NATIVE


def field(number: int) -> Any:
    """Return an attribute of a class derived from ``Fields``; C finds it by its number."""
    return vars(SlotFields if _NATIVE is None else Fields)[f"at{number}"]
