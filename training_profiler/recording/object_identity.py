"""Recognizes objects of the user's."""

import weakref
from collections.abc import Callable
from typing import Any


class ObjectIdentity:
    """Recognizes an object of the user's without keeping it alive."""

    def __init__(self, value: Any) -> None:
        self._id = id(value)
        try:
            self._reference: Callable[[], Any] | None = weakref.ref(value)
        except TypeError:  # such as a list: its end cannot be detected
            self._reference = None

    def matches(self, value: Any) -> bool:
        """Return whether ``value`` is that object."""
        return self._id == id(value) if self._reference is None else self._reference() is value

    @property
    def is_gone(self) -> bool:
        """Whether the object has been deleted, as far as this can be detected."""
        return self._reference is not None and self._reference() is None
