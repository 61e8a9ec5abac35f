"""Which source files are the user's own, and what reports call them."""

import os
import sys
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from training_profiler.recording.section_names import printable

PACKAGES: Final = ("site-packages", "dist-packages")  # folders that installers put libraries in
TYPED_IN: Final = ("<string>", "<stdin>", "<ipython-input-")  # python -c, the prompt, a notebook's cell
# A training runs code from some thousand files; more come only from programs that write programs.
MOST_FILES: Final = 10_000


@dataclass(frozen=True, slots=True)
class Places:
    """Where things lie in a process; all paths are absolute."""

    main: str | None  # the file that was started; None at a prompt or in a notebook
    cwd: str
    standard_library: tuple[str, ...]
    search_path: tuple[str, ...]  # sys.path
    never: tuple[str, ...] = ()  # folders whose files are nobody's training, wherever they lie


def places_of_this_process() -> Places:
    """Return where things lie now."""
    main = getattr(sys.modules.get("__main__"), "__file__", None)
    cwd = _cwd()
    own = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    torch = getattr(sys.modules.get("torch"), "__file__", None)  # built from source it lies in no site-packages
    paths = sysconfig.get_paths()
    library = {paths["stdlib"], paths["platstdlib"], os.path.dirname(os.path.abspath(os.__file__))}
    return Places(
        main=os.path.abspath(main) if isinstance(main, str) else None,
        cwd=cwd,
        standard_library=tuple(library | {os.path.realpath(path) for path in library}),
        search_path=tuple(os.path.abspath(path or cwd) for path in sys.path if isinstance(path, str)),
        never=(own, os.path.dirname(torch)) if isinstance(torch, str) else (own,),
    )


def _cwd() -> str:
    try:
        return os.getcwd()
    except OSError:  # it was deleted
        return os.sep


class UserCode:
    """Tells the user's files from all others by their names alone.

    The user's is what is neither installed, nor Python's, nor ours. Where the program itself is an installed
    package, as with ``python -m package.module``, that package is the user's as well.
    """

    def __init__(self, places: Places) -> None:
        self._places = places
        self._main_package = _installed_package(places.main) if places.main else None
        self._shown: dict[str, str | None] = {}
        self._taken: dict[str, str] = {}  # what is shown -> the path it stands for

    def shown(self, filename: str) -> str | None:
        """Return what reports call the file of a code object, a name no other file has; None if not the user's."""
        try:
            return self._shown[filename]
        except KeyError:
            if len(self._shown) >= MOST_FILES:
                self._shown.clear()
                self._taken.clear()
            shown = self._shown[filename] = self._name_of(filename)
            return shown

    def _name_of(self, filename: str) -> str | None:
        if filename.startswith("<"):
            is_typed_in = filename.startswith(TYPED_IN) and (filename != "<string>" or not self._places.main)
            return printable(filename) if is_typed_in else None
        path = self._absolute(filename)
        if not self._is_users(path):
            return None
        return printable(next(name for name in self._names(path) if self._taken.setdefault(name, path) == path))

    def _absolute(self, filename: str) -> str:
        main = self._places.main
        # The file that was started keeps the name it was started by, and the program may have changed its folder since.
        if main and not os.path.isabs(filename) and main.endswith(os.sep + os.path.normpath(filename)):
            return main
        return os.path.normpath(os.path.join(self._places.cwd, filename))

    def _is_users(self, path: str) -> bool:
        if any(_is_in(path, folder) for folder in self._places.never):
            return False
        package = _installed_package(path)
        if package is not None:
            return package == self._main_package
        return not any(_is_in(path, folder) for folder in self._places.standard_library)

    def _names(self, path: str) -> Iterator[str]:
        """Yield what the file could be called, the nicest first."""
        started = self._main_package or self._places.main
        folders = [os.path.dirname(started)] if started else []
        folders += [self._places.cwd, *sorted(self._places.search_path, key=len, reverse=True)]
        yield from (os.path.relpath(path, folder) for folder in folders if _is_in(path, folder))
        yield os.path.join(*path.split(os.sep)[-2:])
        yield path


def _installed_package(path: str) -> str | None:
    """Return the folder, or the file, of the installed package that ``path`` is part of; None if it is of none."""
    parts = path.split(os.sep)
    at = max((i for i, part in enumerate(parts[:-1]) if part in PACKAGES), default=None)
    return None if at is None else os.sep.join(parts[: at + 2])


def _is_in(path: str, folder: str) -> bool:
    return path.startswith(folder if folder.endswith(os.sep) else folder + os.sep)
