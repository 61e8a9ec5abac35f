"""Replacing names of other modules, and putting back exactly what was there."""

import sys
from collections.abc import Callable
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, Final


class _Finder(MetaPathFinder):
    """Finds one module as the finders behind it do, and waits for it to be executed.

    Programs also look for a module without importing it, so finding it ends nothing.
    """

    def __init__(self, name: str, action: Callable[[], None]) -> None:
        self._name = name
        self._action = action
        self._is_waiting = True

    def find_spec(self, name: str, path: Any, target: ModuleType | None = None) -> ModuleSpec | None:
        if name != self._name or self not in sys.meta_path:
            return None
        for finder in sys.meta_path[sys.meta_path.index(self) + 1 :]:
            find = getattr(finder, "find_spec", None)
            spec: ModuleSpec | None = None if find is None else find(name, path, target)
            if spec is not None:
                self._wait_for(spec.loader)
                return spec
        return None

    def _wait_for(self, loader: Any) -> None:
        execute = getattr(loader, "exec_module", None)
        attributes = getattr(loader, "__dict__", None)
        # A loader that is a class is not one import's own; one that is asked twice waits already.
        if execute is None or not isinstance(attributes, dict) or "exec_module" in attributes:
            return

        def exec_module(module: ModuleType) -> None:
            attributes.pop("exec_module", None)  # the loader is as it was before the module sees it
            execute(module)
            if self._is_waiting:
                self.remove()
                self._action()

        attributes["exec_module"] = exec_module

    def remove(self) -> None:
        """Wait no longer."""
        self._is_waiting = False
        if self in sys.meta_path:
            sys.meta_path.remove(self)


def after_import(name: str, action: Callable[[], None]) -> Callable[[], None]:
    """Call ``action`` once module ``name`` has been imported; return what calls that off."""
    finder = _Finder(name, action)
    sys.meta_path.insert(0, finder)
    return finder.remove


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
