"""What a frame's code object says of its line."""

from collections.abc import Callable
from types import CodeType
from typing import Final, Generic, TypeVar

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
