"""Where memory was asked for, from the stack that torch recorded with it: the program's own line, and the phase."""

import re
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

NO_STACK: Final = "no stack recorded"
BEFORE: Final = "before the history"
ELSEWHERE: Final = "elsewhere"
_TORCH: Final = re.compile(r"(^|/)torch/")
_OF_PROFILE: Final = re.compile(r"(.+)\((\d+)\): (.+)")  # as torch makes a snapshot of a profile: all in the name
_NATIVE: Final = re.compile(r"^$|^\?\?$|^none$|\.(?:c|cc|cpp|cxx|cu|cuh|h|hpp|pyx|so)(?:[.:]|$)")
_STANDARD: Final = re.compile(r"/lib/python3[^/]*/(?!site-packages/|dist-packages/)")
_MODULE: Final = "torch/nn/modules/module.py"
# The first that holds for any frame of a stack; in a backward pass a forward may be computed again.
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
    """Where, such as "model/net.py:31 in forward", and in which phase of a training."""

    place: str
    phase: str


class Origins:
    """Reads stacks; those that a file has once for many allocations are read once."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[Any, Origin]] = {}  # with the stack, whose id would else be another's one day

    def of(self, frames: Any) -> Origin:
        """Return the origin of a stack, the innermost frame first; of none that it has none."""
        known = self._known.get(id(frames))
        if known is None:
            known = self._known[id(frames)] = (frames, _origin(frames))
        return known[1]

    @staticmethod
    def before_history() -> Origin:
        """Return the origin of what was asked for before anything was recorded."""
        return Origin(BEFORE, BEFORE)


def _origin(frames: Any) -> Origin:
    told = [frame for frame in frames if isinstance(frame, dict)] if isinstance(frames, list) else []
    stack = [_frame(str(frame.get("filename", "")), frame.get("line", 0), str(frame.get("name", ""))) for frame in told]
    if not stack:
        return Origin(NO_STACK, NO_STACK)
    words = [f"{file}:{name}" for file, _, name in stack]
    phase = next((phase for phase, pattern in _PHASES if any(pattern.search(word) for word in words)), ELSEWHERE)
    python = [frame for frame in stack if not _NATIVE.search(frame[0])]
    own = [frame for frame in python if not _TORCH.search(frame[0]) and not _STANDARD.search(frame[0])]
    if own or python:
        file, line, name = (own or python)[0]
        return Origin(f"{'/'.join(file.split('/')[-2:])}:{line} in {name}", phase)
    return Origin(f"{stack[0][2]} (no Python in its stack)", phase)


def _frame(file: str, line: Any, name: str) -> tuple[str, Any, str]:
    whole = _OF_PROFILE.fullmatch(name) if file == "none" else None
    if whole is not None:
        file, line, name = whole.groups()
    return file.replace("\\", "/"), line, name
