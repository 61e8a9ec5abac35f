"""Replaces attributes of other modules, and restores exactly what was there."""

import sys
from collections.abc import Callable
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, Final, NamedTuple


class _Finder(MetaPathFinder):
    """Finds one module as the finders behind it do, and waits until it has been executed.

    Programs also look for a module without importing it, so the finder stays until the import.
    """

    def __init__(self, name: str, action: Callable[[], None]) -> None:
        self._name = name
        self._action = action
        self._is_waiting = True
        self._own: list[object] = []  # the functions set on loaders

    def find_spec(self, name: str, path: Any, target: ModuleType | None = None) -> ModuleSpec | None:
        if name != self._name:
            if self._is_waiting and self._is_there():  # another import hook has found it by itself
                self._act()
            return None
        if self not in sys.meta_path:
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
        if execute is None or not isinstance(attributes, dict):  # a loader that is a class serves other imports too
            return
        before = attributes.get("exec_module")  # of another import hook
        if before in self._own:
            return

        def exec_module(module: ModuleType) -> None:
            if attributes.get("exec_module") is exec_module:  # restored before the module can see it
                if before is None:
                    del attributes["exec_module"]
                else:
                    attributes["exec_module"] = before
            execute(module)
            if self._is_waiting:
                self._act()

        self._own.append(exec_module)
        attributes["exec_module"] = exec_module

    def _is_there(self) -> bool:
        spec = getattr(sys.modules.get(self._name), "__spec__", None)
        return spec is not None and not getattr(spec, "_initializing", False)

    def _act(self) -> None:
        self.remove()
        self._action()

    def remove(self) -> None:
        """Stop waiting."""
        self._is_waiting = False
        if self in sys.meta_path:
            sys.meta_path.remove(self)


def after_import(name: str, action: Callable[[], None]) -> Callable[[], None]:
    """Call ``action`` once module ``name`` has been imported; return a function that cancels this."""
    finder = _Finder(name, action)
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
