"""The user's source files, their names for reports, and what a line does at an instruction.

That comes from the code object alone: no source file is read.
"""

import dis
import opcode
import os
import re
import sys
import sysconfig
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from itertools import islice, takewhile
from types import CodeType
from typing import Final, Generic, TypeVar

from training_profiler.base.text import printable
from training_profiler.model.lines import READ_BY_FUNCTION, TOKENIZERS

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
OWN_FOLDER: Final = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep


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
        never=(OWN_FOLDER, os.path.dirname(torch)) if isinstance(torch, str) else (OWN_FOLDER,),
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


def is_own_file(filename: str) -> bool:
    """Return whether a file is the profiler's."""
    return filename.startswith(OWN_FOLDER)


def _is_in(path: str, folder: str) -> bool:
    return path.startswith(_as_prefix(folder))


def _as_prefix(folder: str) -> str:
    return folder if folder.endswith(os.sep) else folder + os.sep


# Another thread sees an instruction of a thread only where that gives up Python's lock: in a call or an operator that
# releases it, after a call, at the begin of a function, or at the end of a round of a loop. Before the last two, Python
# ran since the last call, and at most short operators with it.

MOST_UNITS: Final = 400  # instructions that are searched for the function of a call, which its arguments follow

_OF: Final = opcode.opmap
_HAS_METHODS: Final = sys.version_info < (3, 12)  # an instruction for them; since then a bit of LOAD_ATTR marks them
_UNIT: Final = 2  # bytes an instruction: its code and its argument
_CACHE: Final = _OF["CACHE"]
_EXTENDED: Final = _OF["EXTENDED_ARG"]
_PLAIN_CALLS: Final = frozenset(_OF[name] for name in ("PRECALL", "CALL") if name in _OF)  # no packed arguments
_FORMATS: Final = frozenset(number for name, number in _OF.items() if name.startswith("FORMAT_"))  # in f-strings
_CALLS: Final = _PLAIN_CALLS | frozenset(_OF[name] for name in ("CALL_KW", "CALL_FUNCTION_EX") if name in _OF)
_NAME: Final = _OF["LOAD_NAME"]
_METHOD: Final = _OF["LOAD_METHOD"] if _HAS_METHODS else -1
_ATTRIBUTE: Final = _OF["LOAD_ATTR"]
_GLOBAL: Final = _OF["LOAD_GLOBAL"]  # its lowest bit marks a function that is called
_LOCALS: Final = frozenset(_OF[name] for name in ("LOAD_FAST", "LOAD_FAST_CHECK", "LOAD_FAST_BORROW") if name in _OF)

_OF_PYTHON: Final = frozenset(_OF[name] for name in ("RESUME", "JUMP_BACKWARD"))

# Functions in C of numbers, texts and containers: a call is as short as the instructions around it, and only the place
# where these show. No method that tensors or queues have is among them.
_SHORT: Final = frozenset(
    (
        *("abs", "all", "any", "bool", "chr", "dict", "divmod", "enumerate", "float", "frozenset", "getattr"),
        *("hasattr", "hash", "id", "int", "isinstance", "issubclass", "len", "list", "max", "min", "ord", "pow"),
        *("range", "reversed", "round", "set", "setattr", "slice", "str", "sum", "tuple", "type", "zip"),
    )
)
_SHORT_METHODS: Final = frozenset(
    (
        *("append", "appendleft", "discard", "encode", "endswith", "extend", "heappop", "heappush", "isalpha"),
        *("isdigit", "items", "join", "keys", "lower", "lstrip", "popleft", "rstrip", "setdefault", "startswith"),
        *("strip", "upper", "values"),
    )
)
_OF_NUMBERS: Final = "math."
# Instructions that ask whether an object is true, which no other instruction and no call does for them.
_CONDITIONS: Final = frozenset(
    number
    for name, number in _OF.items()
    if name in ("UNARY_NOT", "TO_BOOL") or ("JUMP" in name and ("IF_TRUE" in name or "IF_FALSE" in name))
)

_OF_IMPORTS: Final = ("IMPORT_FROM", "STORE_", "SWAP", "POP_TOP", "EXTENDED_ARG", "CACHE")  # what follows IMPORT_NAME
_BY_TEXT: Final = ("eval", "exec", "globals", "locals", "vars")  # they may use any name
TOKENIZING: Final = f"{TOKENIZERS}.Tokenizer.encode"  # of the package tokenizers: in Rust, without frames of its own
_BEFORE_LOOPS: Final = ("STORE_", "POP_", "RESUME", "JUMP_", "FOR_ITER", "END_FOR")  # and before what they go through
_PARAMETERS: Final = re.compile(r" (?:(?:named_)?parameters|state_dict)\b| 'params' ")  # ``group["params"]``
_CHANGES: Final = re.compile(
    r" (?:mul|add|sub|div|lerp|addc\w+|copy|clamp)_\b| \*= |BINARY_OP [^@[].*STORE_(?:SU|ATTR (?:data|grad)\b)"
)
_READS_OR_MULTIPLIES: Final = re.compile(r" (?:item|tolist|cpu|numpy|float|bool|int)\b|BINARY_OP @")
_Moment = tuple[int, int]  # a line and a column of the source


def called_function(code: CodeType, instruction: int) -> str:
    """Return what the call at this offset calls: "print", "copy.deepcopy", or ".item" of ``loss.mean().item()``.

    "format" in an f-string; "" where nothing is called, or what has no name, as in ``hooks[0]()``. A function is the
    name whose load begins where the call does: ``loss.mean().item`` is the longest one that ends before its brackets.
    """
    raw, at = code.co_code, _at_call(code.co_code, instruction)
    if at is None:
        return "format" if 0 <= instruction < len(raw) and raw[instruction] in _FORMATS else ""
    first = max(0, at - MOST_UNITS + 1)
    positions = list(islice(code.co_positions(), first, at + 1))
    begin_line, last_line, begin_column, last_column = positions[-1]
    if begin_line is None or last_line is None or begin_column is None or last_column is None:
        return ""  # Python keeps none if asked to
    parts: dict[_Moment, tuple[str, bool]] = {}  # of the called expression, by their ends: name, is it an attribute
    for unit in range(at - 1, first - 1, -1):
        line, end_line, column, end_column = positions[unit - first]
        if line != begin_line or column != begin_column or end_line is None or end_column is None:
            continue
        end, call_end = (end_line, end_column), (last_line, last_column)
        if raw[unit * _UNIT] == _CACHE or end > call_end:
            continue
        name = _name_loaded(code, raw, unit)
        if (name and not parts.get(end, ("", False))[0]) or (end < call_end and end not in parts):
            parts[end] = name, raw[unit * _UNIT] in (_ATTRIBUTE, _METHOD)
    return _dotted(parts) if parts else ""


def runs_python(code: CodeType, instruction: int) -> bool:
    """Return whether the lock was given up at this offset by a loop or the begin of a function, and by no call."""
    raw = code.co_code
    return 0 <= instruction < len(raw) and raw[instruction] in _OF_PYTHON


def tokenizes(name: str, code: CodeType) -> bool:
    """Return whether a function of this name, which a code calls, tokenizes: it may be in Rust, without frames."""
    method = name.rpartition(".")[2]
    is_it = method == "encode" and "ids" in _loaded(code)  # which texts do not have
    return TOKENIZERS in sys.modules and (is_it or method.startswith("encode_batch"))


def is_short(name: str) -> bool:
    """Return whether a function of this name takes no time of its own, such as ``math.sin`` and ``items.append``."""
    _, dot, method = name.rpartition(".")
    is_it = method in _SHORT_METHODS and name != TOKENIZING if dot else name in _SHORT
    return is_it or name.startswith(_OF_NUMBERS)


def reads_number(code: CodeType, instruction: int) -> str:
    """Return the function that reads a number at this offset, if its argument is a tensor: "float"; "" for none.

    A condition (``if loss > best:``) is a "bool".
    """
    raw = code.co_code
    if 0 <= instruction < len(raw) and raw[instruction] in _CONDITIONS:
        return "bool"
    name = called_function(code, instruction)
    return name if name in READ_BY_FUNCTION else ""


def imported(code: CodeType, instruction: int) -> tuple[str, bool]:
    """Return the module that the code imports at this offset, or "", and whether a script uses none of its names."""
    steps = list(dis.get_instructions(code))
    until = next((at for at, each in enumerate(steps) if each.offset == instruction), -1) + 1
    if not until or steps[until - 1].opname not in ("IMPORT_NAME", "IMPORT_FROM"):
        return "", False
    begin = max(at for at in range(until) if steps[at].opname == "IMPORT_NAME")
    following = takewhile(lambda each: each.opname.startswith(_OF_IMPORTS), steps[begin + 1 :])
    bound = {each.argval for each in following if each.opname.startswith("STORE_")}
    is_script = getattr(sys.modules.get("__main__"), "__file__", None) == code.co_filename
    may_be_unused = is_script and code.co_name == "<module>" and bool(bound)
    return printable(steps[begin].argval), may_be_unused and not {*bound, *_BY_TEXT} & set(_loaded(code))


def _loaded(code: CodeType) -> Iterator[object]:
    """Yield the names and texts that a code and those inside it use: a text may be the name of a variable."""
    for each in dis.get_instructions(code):
        if not each.opname.startswith(("STORE_", "DELETE_", "IMPORT_")):
            yield from _loaded(each.argval) if isinstance(each.argval, CodeType) else (each.argval,)


def _at_call(raw: bytes, instruction: int) -> int | None:
    """Return the number of the instruction of the call at this offset; None if it is another instruction."""
    at = instruction // _UNIT
    while 0 < at < len(raw) // _UNIT and raw[at * _UNIT] == _CACHE:  # where the call is of a Python function
        at -= 1
    return at if 0 <= at < len(raw) // _UNIT and raw[at * _UNIT] in _CALLS else None


def _dotted(parts: dict[_Moment, tuple[str, bool]]) -> str:
    """Return the name of the longest part, after a plain name: "copy.deepcopy"; of others the dot alone is shown."""
    line, column = max(parts)
    name, is_attribute = parts[line, column]
    receiver, is_chain = parts.get((line, column - len(name) - 1), ("", False))
    if not is_attribute or not name:
        return name
    return f".{name}" if is_chain else f"{receiver}.{name}"


def _name_loaded(code: CodeType, raw: bytes, unit: int) -> str:
    """Return the name that this instruction loads; "" if it is another instruction."""
    operation, argument = raw[unit * _UNIT], raw[unit * _UNIT + 1]
    if unit and raw[(unit - 1) * _UNIT] == _EXTENDED:
        argument |= raw[(unit - 1) * _UNIT + 1] << 8
    names: tuple[str, ...] = code.co_names
    if operation == _GLOBAL:
        argument >>= 1
    elif operation == _ATTRIBUTE:
        argument >>= 0 if _HAS_METHODS else 1
    elif operation in _LOCALS:
        names = code.co_varnames
    elif operation not in (_NAME, _METHOD):
        return ""
    return names[argument] if argument < len(names) else ""


Instruction = tuple[CodeType, int]  # a code object, and an offset in it
Read = TypeVar("Read")

MOST_INSTRUCTIONS: Final = 5000  # whose answers are remembered
WAITS: Final = frozenset(("item", "cpu", "tolist", "numpy", "synchronize"))
RESUMED: Final = "torch_dynamo_resume_in_"  # the rest of a function after a graph break: ..._NAME_at_LINE


def parameter_loops(code: CodeType) -> list[tuple[int, int, bool]]:
    """Return where the loops of a code begin and end, inner ones last, and which change parameters one by one.

    A loop that also reads numbers or multiplies matrices is none of these: no call does that for all tensors at once.
    """
    steps, loops = list(dis.get_instructions(code)), []
    texts = [f"{step.opname} {step.argrepr} " for step in steps]
    for at, each in enumerate(steps):
        if each.opname == "FOR_ITER":
            over = "".join(takewhile(lambda text: not text.startswith(_BEFORE_LOOPS), reversed(texts[:at])))
            body = "".join(
                text for step, text in zip(steps, texts, strict=True) if each.offset <= step.offset < each.argval
            )
            is_one = _PARAMETERS.search(over) and _CHANGES.search(body) and not _READS_OR_MULTIPLIES.search(body)
            loops.append((each.offset, each.argval, bool(is_one)))
    return loops


def waits_in(called: str, code: CodeType, instruction: int) -> str:
    """Return the name of the method ``called`` at this offset if it waits for the device; else "".

    Only calls without arguments are recognized: ``loss.item()``, but not ``loss.to("cpu")``.
    """
    _, dot, name = called.rpartition(".")
    raw, at = code.co_code, _at_call(code.co_code, instruction) if dot and name in WAITS else None
    return name if at is not None and raw[at * _UNIT] in _PLAIN_CALLS and not raw[at * _UNIT + 1] else ""


class ByInstruction(Generic[Read]):
    """Remembers what ``read`` returns for an instruction: it is searched for from the begin of the code.

    Codes are recognized by their ids, because the hash of one covers all of its constants. They are kept, so that no
    other code gets the id.
    """

    def __init__(self, read: Callable[[CodeType, int], Read]) -> None:
        self._read = read
        self._known: dict[tuple[int, int], tuple[CodeType, Read]] = {}

    def __call__(self, code: CodeType, instruction: int) -> Read:
        """Return what is read of the instruction at this offset."""
        known = self._known.get((id(code), instruction))
        if known is None:
            if len(self._known) >= MOST_INSTRUCTIONS:
                self._known.clear()
            known = self._known[id(code), instruction] = code, self._read(code, instruction)
        return known[1]


def line_of(code: CodeType, instruction: int) -> int:
    """Return the line that the instruction at this offset in ``code`` is on."""
    lines = (line for begin, end, line in code.co_lines() if begin <= instruction < end)
    return next(lines, None) or code.co_firstlineno


def function_name(code: CodeType) -> str:
    """Return the name of the function, such as ``Trainer.step``. A comprehension belongs to its enclosing function."""
    name = code.co_qualname
    while name.endswith(("<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>")):
        name = name.rpartition(".")[0].removesuffix(".<locals>") or "<module>"
    name = name.rpartition("<locals>.")[2]
    if name.startswith(RESUMED):
        name = name.removeprefix(RESUMED).rpartition("_at_")[0]
    return printable(name)
