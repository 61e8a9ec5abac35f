"""Doing something right after a module is imported by the program, without importing it."""

import sys
from collections.abc import Callable
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any


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
