"""Recognizes objects of the user's."""

import contextlib
import functools
import weakref
from collections.abc import Callable, Iterator
from typing import Any


def forgetting(references: dict[int, Any], key: int) -> Callable[[object], object]:
    """Return what removes ``key`` once a weak reference calls it.

    No Python code runs there: an exception of a signal handler, such as that of Ctrl-C, would be printed and lost.
    """
    return functools.partial(references.pop, key)  # the reference is the default of ``pop``


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


class LiveObjects:
    """Objects of the user's that are alive, each once: by identity, because they may have an equality of their own."""

    def __init__(self) -> None:
        self._references: dict[int, Callable[[], Any]] = {}  # by id

    def add(self, value: Any) -> None:
        """Add an object that can be referenced weakly; others are left out."""
        key, references = id(value), self._references
        with contextlib.suppress(TypeError):
            references[key] = weakref.ref(value, forgetting(references, key))

    def __iter__(self) -> Iterator[Any]:
        """Yield the objects that are alive."""
        return iter([value for ref in list(self._references.values()) if (value := ref()) is not None])
