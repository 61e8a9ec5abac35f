"""A line of the user's code, and what a frame's code object says of it."""

import opcode
from types import CodeType
from typing import Final, NamedTuple

from training_profiler.text import printable

WAITS: Final = frozenset(("item", "cpu", "tolist", "numpy", "synchronize"))
# Only these instructions stand between loading a method and calling it without arguments.
_BETWEEN: Final = frozenset(opcode.opmap[name] for name in ("CACHE", "PRECALL", "PUSH_NULL") if name in opcode.opmap)
_CACHE: Final = opcode.opmap["CACHE"]
_CALL: Final = opcode.opmap.get("CALL", -1)
_LOAD_METHOD: Final = opcode.opmap.get("LOAD_METHOD", -1)  # up to Python 3.11
_LOAD_ATTR: Final = opcode.opmap["LOAD_ATTR"]  # since 3.12 for both; the lowest bit of its argument marks a method
_EXTENDED: Final = opcode.opmap["EXTENDED_ARG"]
_UNIT: Final = 2  # bytes an instruction: its code and its argument
_RESUMED: Final = "torch_dynamo_resume_in_"  # the rest of a function after a graph break: ..._NAME_at_LINE


def waits_in(code: CodeType, instruction: int) -> str:
    """Return the name of the method called at this offset if it waits for the device; else "".

    Only calls without arguments are recognized: ``loss.item()``, but not ``loss.to("cpu")``.
    """
    raw = code.co_code
    while 0 < instruction < len(raw) and raw[instruction] == _CACHE:  # where the call is of a Python function
        instruction -= _UNIT
    if not 0 <= instruction < len(raw) or raw[instruction] != _CALL or raw[instruction + 1]:
        return ""
    at = instruction - _UNIT
    while at >= 0 and raw[at] in _BETWEEN:
        at -= _UNIT
    if at < 0 or raw[at] not in (_LOAD_METHOD, _LOAD_ATTR):
        return ""
    argument = raw[at + 1]
    if raw[at - _UNIT] == _EXTENDED and at >= _UNIT:
        argument |= raw[at - _UNIT + 1] << 8
    index = argument if raw[at] == _LOAD_METHOD or _LOAD_METHOD >= 0 else argument >> 1
    name = code.co_names[index] if index < len(code.co_names) else ""
    return name if name in WAITS else ""


class Location(NamedTuple):
    """A line of the user's code."""

    file: str
    line: int
    function: str
    waits_in: str = ""  # the call in it that waits for the device: item, cpu, tolist, ...
    inside: str = ""  # the frames of a library that the line called: "lib/trainer.py:9 fit > lib/log.py:3 flush"
    phase: str = ""  # of a trainer: "callback on_step_end"
    activity: str = ""  # before the first step, what the program prepares: "imports", "model"
    held_by: str = ""  # the line of another thread that has the lock which this one waits for: "load.py:9 decode"

    def alone(self) -> "Location":
        """Return the line without what happened in it."""
        return Location(self.file, self.line, self.function)


Sample = tuple[int, Location | None]  # ns of the clock; None: no user code on the stack


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
