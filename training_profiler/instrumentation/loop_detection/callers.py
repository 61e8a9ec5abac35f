"""What the names of the calling functions say about forward passes without gradients."""

import re
import sys
from collections.abc import Iterator
from enum import Enum
from types import CodeType, FrameType
from typing import Final

from training_profiler.tables.sections import ROLLOUT, SAMPLING

MAX_FRAMES: Final = 12
NEAREST: Final = 4
MAX_CODES: Final = 10_000
MAX_STACKS: Final = 1_000
_WORD: Final = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")


class Purpose(Enum):
    """Why a program calls its model without gradients, as far as its names say."""

    UNKNOWN = "unknown"
    EVALUATING = "evaluating"
    ACTING = "acting"
    GENERATING = "generating"  # for an update, or only to look at


_PURPOSES: Final = {
    Purpose.EVALUATING: {"eval", "evaluate", "evaluates", "evaluation", "evaluator", "test", "testing", "tests"}
    | {"accuracy", "perplexity", "val", "valid", "validate", "validation"},
    Purpose.ACTING: {"act", "acting", "action", "actions", "episode", "episodes", "env", "explore", "interact", "play"}
    | {ROLLOUT, "rollouts", "selfplay", "trajectories", "trajectory"},
    Purpose.GENERATING: {"completions", "decode", "generate", "generation", "sample", "samples", SAMPLING},
}
# Words of the variables, attributes and constants of a function whose own name says nothing.
_OF_VARIABLES: Final = {
    Purpose.EVALUATING: {"acc", "accuracy", "correct", "perplexity", "test", "val", "validation"},
    Purpose.ACTING: {"action", "actions", "episode", "episodes", "env", "envs", "obs", "observation", "observations"}
    | {"reward", "rewards", "trajectory", "trajectories"},
}
# A program that has imported one of these lets its model act, unless its names say otherwise.
_SIMULATORS: Final = ("gymnasium", "gym", "pettingzoo", "dm_env", "dm_control", "envpool", "brax", "procgen")

NamedFrame = tuple[int, CodeType, Purpose]  # the id of the frame: the frame would keep its local variables alive


def purpose_of_name(name: str) -> Purpose:
    """Return what the words in a function's name say."""
    words = {word.lower() for word in _WORD.findall(name)}
    return next((purpose for purpose, known in _PURPOSES.items() if words & known), Purpose.UNKNOWN)


def purpose_of_variables(code: CodeType) -> Purpose:
    """Return what the words of a function's variables, attributes and texts say; evaluating, if they say both.

    That is weaker than its name: a function with rewards may act to learn from them, or to evaluate.
    """
    texts = [text for text in code.co_consts if isinstance(text, str) and text.isidentifier()]
    words = {
        word.lower()
        for name in (*code.co_varnames, *code.co_cellvars, *code.co_freevars, *code.co_names, *texts)
        for word in _WORD.findall(name)
    }
    return next((purpose for purpose, known in _OF_VARIABLES.items() if words & known), Purpose.UNKNOWN)


class Callers:
    """Reads the names of functions, each once."""

    def __init__(self) -> None:
        # By id, because hashing a code object reads all of it. The code is kept so that its id is not reused.
        self._known: dict[int, tuple[CodeType, Purpose]] = {}
        self._hints: dict[int, tuple[CodeType, Purpose]] = {}
        self._named_at: dict[tuple[int, ...], tuple[int, ...]] = {}  # by functions around a call: those that are named

    def named(self, frame: FrameType | None) -> tuple[NamedFrame, ...]:
        """Return the frames from ``frame`` outwards whose names say something."""
        around = code_ids(frame, MAX_FRAMES)
        positions = self._named_at.get(around)
        if positions is None:
            positions = self._find_named(frame, around)
        found, at = [], 0
        for position in positions:
            while at < position and frame is not None:
                frame, at = frame.f_back, at + 1
            assert frame is not None
            purpose = self._known[id(frame.f_code)][1]
            if purpose is not Purpose.UNKNOWN:  # another call of it trained
                found.append((id(frame), frame.f_code, purpose))
        return tuple(found)

    def _find_named(self, frame: FrameType | None, around: tuple[int, ...]) -> tuple[int, ...]:
        """Return how many frames away from ``frame`` those are whose names say something."""
        if len(self._known) > MAX_CODES or len(self._named_at) >= MAX_STACKS:
            self.clear()
        found = []
        for position in range(len(around)):
            assert frame is not None
            code = frame.f_code
            known = self._known.get(id(code))
            if known is None:
                known = self._known[id(code)] = (code, purpose_of_name(code.co_name))
            if known[1] is not Purpose.UNKNOWN:
                found.append(position)
            frame = frame.f_back
        self._named_at[around] = tuple(found)
        return tuple(found)

    def hint(self, frame: FrameType | None) -> Purpose:
        """Return what the variables of the function say, see ``purpose_of_variables``."""
        if frame is None:
            return Purpose.UNKNOWN
        code = frame.f_code
        known = self._hints.get(id(code))
        if known is None:
            if len(self._hints) >= MAX_CODES:
                self._hints.clear()
            known = self._hints[id(code)] = (code, purpose_of_variables(code))
        return known[1]

    def purpose(self, frames: tuple[NamedFrame, ...], *, has_training_event: bool) -> Purpose:
        """Return the purpose of calls made from these frames.

        With ``has_training_event``, a function that makes the call of now does not evaluate, whatever its name:
        ``test_training`` trains. That is remembered.
        """
        said = {purpose for _, _, purpose in frames}
        if has_training_event and Purpose.EVALUATING in said:
            around = {(at, id(code)) for at, code, _ in frames}.intersection(_stack())
            for at, code, purpose in frames:
                if purpose is Purpose.EVALUATING and (at, id(code)) in around:
                    self._known[id(code)] = (code, Purpose.UNKNOWN)
            said = {purpose for at, code, purpose in frames if (at, id(code)) not in around}
        for purpose in (Purpose.EVALUATING, Purpose.ACTING, Purpose.GENERATING):
            if purpose in said:
                return purpose
        return Purpose.ACTING if any(name in sys.modules for name in _SIMULATORS) else Purpose.UNKNOWN

    def clear(self) -> None:
        """Release the code objects."""
        # Without the code objects, their ids may become those of others.
        self._known.clear()
        self._named_at.clear()
        self._hints.clear()


def code_ids(frame: FrameType | None, most: int) -> tuple[int, ...]:
    """Return the ids of the code of ``frame`` and of those around it, outwards, of ``most`` at most."""
    found: list[int] = []
    while frame is not None and len(found) < most:
        found.append(id(frame.f_code))
        frame = frame.f_back
    return tuple(found)


def nearest(frame: FrameType | None) -> tuple[int, ...]:
    """Return a key of the functions around a call that is much quicker to compare than their names are to read."""
    return code_ids(frame, NEAREST)


def is_nearest(key: tuple[int, ...], frame: FrameType | None) -> bool:
    """Return whether ``nearest`` returns this key."""
    return code_ids(frame, NEAREST) == key


def says(frames: tuple[NamedFrame, ...], purpose: Purpose) -> bool:
    """Return whether one of the names says this."""
    return any(said is purpose for _, _, said in frames)


def _stack() -> Iterator[tuple[int, int]]:
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        yield id(frame), id(frame.f_code)
        frame = frame.f_back
