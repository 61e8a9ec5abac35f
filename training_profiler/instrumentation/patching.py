"""Replaces attributes of other modules, and restores exactly what was there."""

import sys
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from training_profiler.bootstrap.training_profiler_hook import ModuleFinder


def after_import(name: str, action: Callable[[], None]) -> Callable[[], None]:
    """Call ``action`` once module ``name`` has been imported; return a function that cancels this."""
    finder = ModuleFinder(name, action)
    sys.meta_path.insert(0, finder)
    return finder.remove


_ABSENT: Final = object()
# warnings.warn(stacklevel=...) does not count frames of this file. Not for functions that dynamo may inline.
SKIPPED_BY_WARNINGS: Final = "<frozen importlib._bootstrap_external>"


def hidden_from_warnings(function: Any) -> Any:
    """Return the wrapper ``function``, changed so that warnings of the wrapped function point at its caller."""
    function.__code__ = function.__code__.replace(co_filename=SKIPPED_BY_WARNINGS)
    return function


class _Replaced(NamedTuple):
    owner: Any
    name: str
    own: Any  # the owner's value before; an inherited attribute has none, and is deleted again
    original: Any
    replacement: Any
    in_front: Any = _ABSENT  # what stands in front of the replacement

    def is_ours(self) -> bool:
        """Return whether neither the program nor a library has replaced it after us."""
        value = vars(self.owner).get(self.name, _ABSENT)
        return value is not _ABSENT and (value is self.replacement or value is self.in_front)


class Patches:
    """Replaced attributes, in order."""

    def __init__(self) -> None:
        self._replaced: list[_Replaced] = []
        self._undo: list[Callable[[], Any]] = []

    def replace(self, owner: Any, name: str, make: Callable[[Any], Any]) -> None:
        """Set ``owner.name`` to ``make(its value)``.

        Raises:
            AttributeError: there is no such name.
            TypeError: its value is not callable.
        """
        original = getattr(owner, name)
        if not callable(original):
            raise TypeError(f"{name!r} is not callable but of type {type(original).__name__!r}")
        own = vars(owner).get(name, _ABSENT)
        replacement = make(original)
        setattr(owner, name, replacement)
        self._replaced.append(_Replaced(owner, name, own, original, replacement))

    def repeat(self, owner: Any, alias: Any, name: str) -> None:
        """Set ``alias.name`` to the replaced ``owner.name``, if the function is also available there."""
        if hasattr(alias, name):
            self.replace(alias, name, lambda _: getattr(owner, name))

    def replaced(self, owner: Any, name: str) -> tuple[Any, Any]:
        """Return what ``owner.name`` was, and what has replaced it.

        Raises:
            StopIteration: it was not replaced.
        """
        return next((one.original, one.replacement) for one in self._replaced if one[:2] == (owner, name))

    def exchange_all(self, is_back: bool) -> None:
        """Put what was there in front of all replacements, or these in its place again."""
        for i, one in enumerate(self._replaced):
            if one.is_ours():
                function = one.replacement if is_back else one.original if one.own is _ABSENT else one.own
                self._replaced[i] = one._replace(in_front=function)
                setattr(one.owner, one.name, function)

    def exchange(self, owner: Any, name: str, function: Any) -> None:
        """Put ``function`` in front of the replacement of ``owner.name``, or that in its place again.

        An attribute that others have replaced since stays theirs.
        """
        for i, one in enumerate(self._replaced):
            if one[:2] == (owner, name) and one.is_ours():
                self._replaced[i] = one._replace(in_front=function)
                setattr(owner, name, function)

    def keep(self, undo: Callable[[], Any]) -> None:
        """Have ``undo`` called too when the patches are undone."""
        self._undo.append(undo)

    def undo(self) -> None:
        """Restore everything, last first. Attributes that others have replaced since stay theirs."""
        while self._undo:
            self._undo.pop()()
        while self._replaced:
            one = self._replaced.pop()
            if not one.is_ours():
                continue
            if one.own is _ABSENT:
                delattr(one.owner, one.name)
            else:
                setattr(one.owner, one.name, one.own)

    def are_in_place(self) -> bool:
        """Return whether no attribute has been replaced after us."""
        return all(one.is_ours() for one in self._replaced)
