"""A line of the user's code, and what a frame's code object says of it."""

from collections.abc import Callable
from types import CodeType
from typing import Final, Generic, NamedTuple, TypeVar

from training_profiler.base.text import printable
from training_profiler.sampling.called_functions import has_no_arguments

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
    return name if dot and name in WAITS and has_no_arguments(code, instruction) else ""


class Location(NamedTuple):
    """A line of the user's code."""

    file: str
    line: int
    function: str
    waits_in: str = ""  # what waits for the device in it: "item", a method of a tensor; "float", a function; "bool"
    inside: str = ""  # the frames of a library that the line called: "lib/trainer.py:9 fit > lib/log.py:3 flush"
    phase: str = ""  # of a trainer: "callback on_step_end"
    activity: str = ""  # before the first step, what the program prepares: "imports", "model"
    held_by: str = ""  # the line of another thread that has the lock which this one waits for: "load.py:9 decode"
    called: str = ""  # the function that the line was calling: "copy.deepcopy", ".item", PYTHON; "" if unknown
    making: str = ""  # the part of a batch that the training makes itself: "decode"
    waits_for: str = ""  # work elsewhere that is not sampled: "a queue between processes"

    def alone(self) -> "Location":
        """Return the line without what happened in it."""
        return Location(self.file, self.line, self.function)


Sample = tuple[int, Location | None]  # ns of the clock; None: no user code on the stack


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
