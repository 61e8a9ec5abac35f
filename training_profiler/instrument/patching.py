"""Replacing names of other modules, and putting back exactly what was there."""

from collections.abc import Callable
from typing import Any, Final

_ABSENT: Final = object()
# Frames of this name are not counted where a warning says how far up its cause is. Not for what dynamo may inline.
UNCOUNTED_BY_WARNINGS: Final = "<frozen importlib._bootstrap_external>"


def unseen(function: Any) -> Any:
    """Return ``function``, which calls what it replaces, as one that warnings from inside of that do not point at."""
    function.__code__ = function.__code__.replace(co_filename=UNCOUNTED_BY_WARNINGS)
    return function


class Patches:
    """What was replaced, in order."""

    def __init__(self) -> None:
        self._made: list[tuple[Any, str, Any, Any]] = []  # (owner, name, what it held itself, what it holds now)
        self._undone_by: list[Callable[[], Any]] = []

    def replace(self, owner: Any, name: str, make: Callable[[Any], Any]) -> None:
        """Let ``owner.name`` be what ``make`` returns for what it is now.

        Raises:
            AttributeError: there is no such name.
        """
        original = getattr(owner, name)
        # An inherited name is not the owner's own: put back, it has to be gone again.
        own = vars(owner).get(name, _ABSENT)
        replacement = make(original)
        setattr(owner, name, replacement)
        self._made.append((owner, name, own, replacement))

    def repeat(self, owner: Any, other: Any, name: str) -> None:
        """Let ``other.name`` be what ``owner.name`` is now, where it is the same under another path."""
        if hasattr(other, name):
            self.replace(other, name, lambda _: getattr(owner, name))

    def keep(self, undo: Callable[[], Any]) -> None:
        """Remember how to undo something that was not done here."""
        self._undone_by.append(undo)

    def undo(self) -> None:
        """Put everything back, the last first; what somebody else has replaced since stays theirs."""
        while self._undone_by:
            self._undone_by.pop()()
        while self._made:
            owner, name, own, replacement = self._made.pop()
            if vars(owner).get(name, _ABSENT) is not replacement:
                continue
            if own is _ABSENT:
                delattr(owner, name)
            else:
                setattr(owner, name, own)

    def are_in_place(self) -> bool:
        """Return whether nobody has replaced a name after us."""
        return all(vars(owner).get(name) is replacement for owner, name, _, replacement in self._made)
