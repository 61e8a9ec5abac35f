"""Distinguishes the user's source files from libraries and names them for reports."""

import os
import re
import sys
import sysconfig
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from itertools import islice
from typing import Final

from training_profiler.base.text import printable

PACKAGES: Final = ("site-packages", "dist-packages")  # folders that installers put libraries in
PACKAGE_FOLDERS: Final = tuple(os.sep + name + os.sep for name in PACKAGES)
METADATA: Final = ".dist-info"  # what an installer writes beside a package
TYPED_IN: Final = ("<string>", "<stdin>", "<ipython-input-")  # python -c, the prompt, a notebook's cell
SPAWNED: Final = "--multiprocessing-fork"  # a word of the command that starts a process of multiprocessing's
DOTTED: Final = 3  # parts of a file's name after the package that make it the name of a module, with its suffix
# What torch.compile writes: FOLDER/ab/cab....py, "c" and 51 characters of a hash, of which two name the folder.
COMPILED: Final = re.compile(r"(?:^|/)(..)/c\1[a-z2-7]{49}\.py")
# A training runs code from a few thousand files. Only programs that generate code have more.
MOST_FILES: Final = 10_000
MOST_ENTRIES: Final = 5_000  # of a folder: it may be one of data


@dataclass(frozen=True, slots=True)
class Places:
    """Paths of a process; all are absolute."""

    main: str | None  # the file that was started; None at a prompt or in a notebook
    cwd: str
    standard_library: tuple[str, ...]
    search_path: tuple[str, ...]  # sys.path
    never: tuple[str, ...] = ()  # folders whose files are never user code
    installed: tuple[str, ...] = ()  # further folders that an installer put libraries in: pip install --target
    has_typed_in: bool = True  # code given by ``python -c`` is the user's if no file was started
    cell_of: Callable[[str], str | None] = lambda filename: None  # the name of a notebook's cell, by its code's file


def places_of_this_process() -> Places:
    """Return the current paths of this process."""
    main = getattr(sys.modules.get("__main__"), "__file__", None)
    cwd = os.sep
    with suppress(OSError):  # it was deleted
        cwd = os.getcwd()
    package = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    torch = getattr(sys.modules.get("torch"), "__file__", None)  # a source build is not in site-packages
    paths = sysconfig.get_paths()
    main = os.path.abspath(main) if isinstance(main, str) else None
    search_path = tuple(os.path.abspath(path or cwd) for path in sys.path if isinstance(path, str))
    own_folders = {cwd, os.path.dirname(main) if main else cwd}
    others = [path for path in search_path if not any(own == path or _is_in(own, path) for own in own_folders)]
    library = {paths["stdlib"], paths["platstdlib"], os.path.dirname(os.path.abspath(os.__file__))}
    return Places(
        main=main,
        cwd=cwd,
        standard_library=tuple(library | {os.path.realpath(path) for path in library}),
        search_path=search_path,
        never=(package, os.path.dirname(torch)) if isinstance(torch, str) else (package,),
        installed=tuple(folder for folder in others if _has_metadata(folder)),
        has_typed_in=SPAWNED not in sys.orig_argv,
        cell_of=_cell_of,
    )


def _cell_of(filename: str) -> str | None:
    """Return the name of a cell as IPython shows it, ``In [2]``; None for other files. Imports nothing."""
    get_shell = getattr(sys.modules.get("IPython"), "get_ipython", None)
    compiler = getattr(None if get_shell is None else get_shell(), "compile", None)
    name_of = getattr(compiler, "format_code_name", None)
    kind_and_name = None if name_of is None else name_of(filename)
    return None if kind_and_name is None else kind_and_name[1].replace("In[", "In [")


@cache
def _has_metadata(folder: str) -> bool:
    """Return whether an installer has written to a folder other than one it is known by; not in editable form."""
    if os.path.basename(folder) in PACKAGES:
        return False
    try:
        with os.scandir(folder) as entries:
            return any(entry.name.endswith(METADATA) for entry in islice(entries, MOST_ENTRIES))
    except OSError:  # it does not exist, or is an archive
        return False


class UserCode:
    """Finds the user's files by their paths.

    A file is the user's unless it is installed or belongs to Python or to this package. If the program itself is an
    installed package, as with ``python -m package.module``, that package is the user's as well.

    What is found by PYTHONPATH, in a sibling folder or in editable form is the user's: a project may be spread over
    folders, and a line that cannot be shown cannot be changed. Only what an installer has noted there is a library.
    """

    def __init__(self, places: Places) -> None:
        self._places = places
        self._never, self._standard_library = (
            tuple(map(_as_prefix, folders)) for folders in (places.never, places.standard_library)
        )
        self._runs_text = places.main is None and places.has_typed_in
        self._main_package = self._installed_package(places.main) if places.main else None
        self._names: dict[str, tuple[str | None, str | None]] = {}  # by code object's file: the user's, a library's
        self._path_of: dict[str, str] = {}  # name in reports -> path

    def shown(self, filename: str) -> str | None:
        """Return the unique name in reports of a code object's file; None if it is not the user's."""
        return self._names_of(filename)[0]

    def path(self, filename: str) -> str:
        """Return the absolute path of a code object's file; "" for code that was typed in."""
        is_typed_in = filename.startswith("<") or self._places.cell_of(filename) is not None
        return "" if is_typed_in else self._absolute(filename)

    def shown_library(self, filename: str) -> str | None:
        """Return the name of a file in an installed package, such as ``transformers/trainer.py``; None for others.

        Torch, this package and the program's own package are no libraries here.
        """
        return self._names_of(filename)[1]

    def _names_of(self, filename: str) -> tuple[str | None, str | None]:
        try:
            return self._names[filename]
        except KeyError:
            cell = self._places.cell_of(filename)
            if cell is not None:  # not kept: the number changes where the cell runs again
                return cell, None
            if len(self._names) >= MOST_FILES:
                self._names.clear()
                self._path_of.clear()
            found = self._names[filename] = self._find(filename)
            return found

    def _find(self, filename: str) -> tuple[str | None, str | None]:
        """Return the name of a user's file, and that of a library's; at most one of them is known."""
        if filename.startswith("<"):
            is_typed_in = filename.startswith(TYPED_IN) and (filename != "<string>" or self._runs_text)
            return (printable(filename) if is_typed_in else None), None
        path = self._absolute(filename)
        if path.startswith(self._never):
            return None, None
        package = self._installed_package(path)
        if package is None:
            if path.startswith(self._standard_library) or self._is_generated(path):
                return None, None
        elif package != self._main_package:
            return None, printable(path.removeprefix(_as_prefix(os.path.dirname(package))))
        names = self._possible_names(path)
        return printable(next(name for name in names if self._path_of.setdefault(name, path) == path)), None

    def _absolute(self, filename: str) -> str:
        main = self._places.main
        # The program may have changed its working directory since it was started by this name.
        if main and not os.path.isabs(filename) and main.endswith(os.sep + os.path.normpath(filename)):
            return main
        return os.path.normpath(os.path.join(self._places.cwd, filename))

    def _is_generated(self, path: str) -> bool:
        """Return whether a library wrote the file: ``torch.compile``, or a package that names it as its own module."""
        *folders, name = path.split(os.sep)
        if COMPILED.fullmatch("/".join((*folders[-1:], name))):
            return True
        package, *others = name.split(".")  # torch_geometric.nn.conv.gcn_conv_GCNConv_propagate_a1b2.py
        if len(others) < DOTTED or not all(part.isidentifier() for part in others):
            return False
        file = getattr(sys.modules.get(package), "__file__", None)
        return isinstance(file, str) and self._installed_package(os.path.abspath(file)) is not None

    def _installed_package(self, path: str) -> str | None:
        """Return the folder or file of the installed package that contains ``path``; None without one."""
        begins = [path.rfind(folder) + len(folder) for folder in PACKAGE_FOLDERS if folder in path]
        if begins:
            end = path.find(os.sep, max(begins))
            return path if end < 0 else path[:end]
        folder = next((folder for folder in self._places.installed if _is_in(path, folder)), None)
        return None if folder is None else os.path.join(folder, os.path.relpath(path, folder).split(os.sep)[0])

    def _possible_names(self, path: str) -> Iterator[str]:
        """Yield possible names of the file, the shortest first."""
        started = self._main_package or self._places.main
        folders = [os.path.dirname(started)] if started else []
        folders += [self._places.cwd, *sorted(self._places.search_path, key=len, reverse=True)]
        yield from (os.path.relpath(path, folder) for folder in folders if _is_in(path, folder))
        yield os.path.join(*path.split(os.sep)[-2:])
        yield path


def _is_in(path: str, folder: str) -> bool:
    return path.startswith(_as_prefix(folder))


def _as_prefix(folder: str) -> str:
    return folder if folder.endswith(os.sep) else folder + os.sep
