"""What a line does at an instruction, from its code object alone: no source file is read."""

import opcode
import sys
from collections.abc import Callable
from itertools import islice
from types import CodeType
from typing import Final, Generic, TypeVar

from training_profiler.base.text import printable
from training_profiler.model.lines import READ_BY_FUNCTION

# Another thread sees an instruction of a thread only where that gives up Python's lock: in a call or an operator that
# releases it, after a call, at the begin of a function, or at the end of a round of a loop. Before the last two, Python
# ran since the last call, and at most short operators with it.

MOST_UNITS: Final = 400  # instructions that are searched for the function of a call, which its arguments follow

_OF: Final = opcode.opmap
_HAS_METHODS: Final = sys.version_info < (3, 12)  # an instruction for them; since then a bit of LOAD_ATTR marks them
_UNIT: Final = 2  # bytes an instruction: its code and its argument
_CACHE: Final = _OF["CACHE"]
_EXTENDED: Final = _OF["EXTENDED_ARG"]
_PLAIN_CALLS: Final = frozenset(
    _OF[name] for name in ("PRECALL", "CALL") if name in _OF
)  # no names or packed arguments
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

_Moment = tuple[int, int]  # a line and a column of the source


def called_function(code: CodeType, instruction: int) -> str:
    """Return what the call at this offset calls: "print", "copy.deepcopy", or ".item" of ``loss.mean().item()``.

    "" where the instruction calls nothing, or where the function has no name, as in ``hooks[0]()``. A function is the
    name whose load begins where the call does: ``loss.mean().item`` is the longest one that ends before its brackets.
    """
    raw, at = code.co_code, _at_call(code.co_code, instruction)
    if at is None:
        return ""
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


def is_short(name: str) -> bool:
    """Return whether a function of this name takes no time of its own, such as ``math.sin`` and ``items.append``."""
    _, dot, method = name.rpartition(".")
    return name.startswith(_OF_NUMBERS) or (method in _SHORT_METHODS if dot else name in _SHORT)


def reads_number(code: CodeType, instruction: int) -> str:
    """Return the function that reads a number at this offset, if its argument is a tensor: "float"; "" for none.

    A condition (``if loss > best:``) is a "bool".
    """
    raw = code.co_code
    if 0 <= instruction < len(raw) and raw[instruction] in _CONDITIONS:
        return "bool"
    name = called_function(code, instruction)
    return name if name in READ_BY_FUNCTION else ""


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
_RESUMED: Final = "torch_dynamo_resume_in_"  # the rest of a function after a graph break: ..._NAME_at_LINE


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
    if name.startswith(_RESUMED):
        name = name.removeprefix(_RESUMED).rpartition("_at_")[0]
    return printable(name)
