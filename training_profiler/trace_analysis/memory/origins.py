"""Where the program requested memory: its own line and the phase, from the stack that torch recorded."""

import re
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from training_profiler.base.text import printable
from training_profiler.trace_analysis.program_frames import is_of_program

NO_STACK: Final = "no stack recorded"
MOST_TEXT: Final = 1_000  # characters of a name: the patterns take long on longer ones
MOST_FRAMES: Final = 1_000
BEFORE: Final = "before the history"
ELSEWHERE: Final = "elsewhere"
_OF_PROFILE: Final = re.compile(
    r"(.+)\((\d+)\): (.+)"
)  # a snapshot made from a profile has the whole frame in its name
_NATIVE: Final = re.compile(r"^$|^\?\?$|^none$|\.(?:c|cc|cpp|cxx|cu|cuh|h|hpp|pyx|so)(?:[.:]|$)")
_MODULE: Final = "torch/nn/modules/module.py"
# The first phase that matches any frame of a stack counts: a backward pass may compute a forward pass again.
_PHASES: Final[Sequence[tuple[str, re.Pattern[str]]]] = tuple(
    (phase, re.compile(pattern))
    for phase, pattern in (
        ("optimizer", r"torch/optim/.*:"),
        ("backward", r"torch/(?:_tensor|autograd/(?:__init__|graph))\.py:(?:backward|grad|_engine_run_backward)$"
                     r"|:.*autograd::Engine::"),
        ("forward", rf"{re.escape(_MODULE)}:_(?:wrapped_)?call_impl$"),
        ("model made or moved",
         rf"{re.escape(_MODULE)}:(?:_apply|convert|to|cuda)$|:reset_parameters$|torch/nn/init\.py:"),
        ("data", r"torch/utils/data/.*:|:pin_memory$"),
    )
)  # fmt: skip


class Origin(NamedTuple):
    """A place in the program, such as "model/net.py:31 in forward", and the phase of the training."""

    place: str
    phase: str


class Origins:
    """Reads stacks. A stack that many allocations share is read once."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[Any, Origin]] = {}  # keeps the stack, so that its id stays its own

    def of(self, frames: Any) -> Origin:
        """Return the origin of a stack, whose innermost frame is the first. The stack may be missing."""
        known = self._known.get(id(frames))
        if known is None:
            known = self._known[id(frames)] = (frames, _origin(frames))
        return known[1]

    @staticmethod
    def before_history() -> Origin:
        """Return the origin of memory that was requested before the history begins."""
        return Origin(BEFORE, BEFORE)


def _origin(frames: Any) -> Origin:
    recorded = [frame for frame in frames if isinstance(frame, dict)] if isinstance(frames, list) else []
    stack = [
        _frame(_text(frame.get("filename", "")), _text(frame.get("line", 0)), _text(frame.get("name", "")))
        for frame in recorded[:MOST_FRAMES]
    ]
    if not stack:
        return Origin(NO_STACK, NO_STACK)
    words = [f"{file}:{name}" for file, _, name in stack]
    phase = next((phase for phase, pattern in _PHASES if any(pattern.search(word) for word in words)), ELSEWHERE)
    python = [frame for frame in stack if not _NATIVE.search(frame[0])]
    own = [frame for frame in python if is_of_program(frame[0])]
    if own or python:
        file, line, name = (own or python)[0]
        return Origin(f"{'/'.join(file.split('/')[-2:])}:{line} in {name}", phase)
    return Origin(f"{stack[0][2]} (no Python in its stack)", phase)


def _text(value: Any) -> str:
    """Return a text or number; others, which may be nested, are none."""
    if isinstance(value, str):
        return value[:MOST_TEXT]
    return str(value) if isinstance(value, int) and abs(value) < 2**63 else ""


def _frame(file: str, line: Any, name: str) -> tuple[str, Any, str]:
    whole = _OF_PROFILE.fullmatch(name) if file == "none" else None
    if whole is not None:
        file, line, name = whole.groups()
    return printable(file.replace("\\", "/"), MOST_TEXT), printable(str(line)), printable(name, MOST_TEXT)
