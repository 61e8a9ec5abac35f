"""Forward passes without gradients in a row: which of them feed an update, by their order and the callers' names."""

import re
import sys
import weakref
from collections.abc import Callable, Iterator
from enum import Enum
from types import CodeType, FrameType
from typing import Any, Final

from training_profiler.base.sections import ROLLOUT, SAMPLING
from training_profiler.instrumentation.loop_detection.modules import modules_within, read_code
from training_profiler.recording.event_codes import Fields, field

MAX_FRAMES: Final = 12
NEAREST: Final = 4
MAX_MODULES: Final = 64  # calls of further ones are not counted
MAX_TEACHER_CALLS: Final = 64  # of untrained modules before the first update; with more, they prepare the data
ROLLOUT_CALLS: Final = 3  # fewer calls of a model that acts are single forward passes
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

_UNKNOWN: Final = Purpose.UNKNOWN  # a member of an enum takes long to find
NamedFrame = tuple[int, CodeType, Purpose]  # the id of the frame: the frame would keep its local variables alive


def purpose_of_name(code: CodeType) -> Purpose:
    """Return what the words in a function's name say."""
    words = {word.lower() for word in _WORD.findall(code.co_name)}
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
    """Reads what the names in functions say, each once."""

    def __init__(self) -> None:
        # By id, because hashing a code object reads all of it. The code is kept so that its id is not reused.
        self._names: dict[int, tuple[CodeType, Purpose]] = {}
        self._hints: dict[int, tuple[CodeType, Purpose]] = {}

    def named(self, frame: FrameType | None) -> tuple[NamedFrame, ...]:
        """Return the frames from ``frame`` outwards whose names say something."""
        found: list[NamedFrame] = []
        for _ in range(MAX_FRAMES):
            if frame is None:
                break
            code = frame.f_code
            known = self._names.get(id(code)) or read_code(self._names, code, purpose_of_name)
            if known[1] is not _UNKNOWN:  # another call of it may have trained
                found.append((id(frame), code, known[1]))
            frame = frame.f_back
        return tuple(found)

    def hint(self, frame: FrameType | None) -> Purpose:
        """Return what the variables of the function say, see ``purpose_of_variables``."""
        if frame is None:
            return Purpose.UNKNOWN
        code = frame.f_code
        return (self._hints.get(id(code)) or read_code(self._hints, code, purpose_of_variables))[1]

    def purpose(self, frames: tuple[NamedFrame, ...], *, has_training_event: bool = False) -> Purpose:
        """Return the purpose of calls made from these frames.

        With ``has_training_event``, a function that makes the call of now does not evaluate, whatever its name:
        ``test_training`` trains. That is remembered.
        """
        said = {purpose for _, _, purpose in frames}
        if has_training_event and Purpose.EVALUATING in said:
            around = {(at, id(code)) for at, code, _ in frames}.intersection(_stack())
            for at, code, purpose in frames:
                if purpose is Purpose.EVALUATING and (at, id(code)) in around:
                    self._names[id(code)] = (code, Purpose.UNKNOWN)
            said = {purpose for at, code, purpose in frames if (at, id(code)) not in around}
        for purpose in (Purpose.EVALUATING, Purpose.ACTING, Purpose.GENERATING):
            if purpose in said:
                return purpose
        return Purpose.ACTING if any(name in sys.modules for name in _SIMULATORS) else Purpose.UNKNOWN


def nearest(frame: FrameType | None) -> tuple[int, ...]:
    """Return a key of the functions around a call that is much quicker to compare than their names are to read."""
    found: list[int] = []
    for _ in range(NEAREST):
        if frame is None:
            break
        found.append(id(frame.f_code))
        frame = frame.f_back
    return tuple(found)


def _stack() -> Iterator[tuple[int, int]]:
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        yield id(frame), id(frame.f_code)
        frame = frame.f_back


class ModuleUse(Fields):
    """The calls of one module in a run."""

    calls: int = field(0)
    end_ns: int = field(1)  # of the call added last
    run: "NoGradRun" = field(2)

    def __init__(self, module: Any, begin_ns: int, run: "NoGradRun") -> None:
        self.run = run
        self.module = weakref.ref(module)
        self.begin_ns = begin_ns
        self.end_ns, self.calls = begin_ns, 0
        self.is_evaluated = False  # it was in eval mode


class NoGradRun(Fields):
    """The calls without gradients since the last training event."""

    key: tuple[int, ...] = field(0)  # of the functions around its latest call
    calls: int = field(1)
    latest: ModuleUse | None = field(2)
    depth: int = field(3)  # number of methods of modules around the latest call; -1 if not known

    def __init__(
        self, begin_ns: int, key: tuple[int, ...], named: tuple[NamedFrame, ...], hint: Purpose = Purpose.UNKNOWN
    ) -> None:
        self.key = key
        self.begun_in = key  # of those around its first call
        self.hint = hint  # from the variables of the function that made it
        self.begin_ns = begin_ns
        self.calls = 0
        self.is_final = False  # its first events were handed out, so they cannot become an evaluation
        self.is_rollout_open = False
        self.acts = False  # by its variables, although no name says so
        self.named = named
        self.uses: dict[int, ModuleUse] = {}  # by id of the module
        self.latest = None

    def call_begins(self, module: Any, now_ns: int) -> None:
        """Add a call of ``module``."""
        use = self.uses.get(id(module))
        if use is None:
            use = ModuleUse(module, now_ns, self)
            if len(self.uses) < MAX_MODULES:
                self.uses[id(module)] = use
        use.is_evaluated |= not module.training
        self.calls += 1
        use.calls += 1
        self.latest = use

    def moves_to(self, key: tuple[int, ...], named: tuple[NamedFrame, ...]) -> bool:
        """Go on in other functions; return False if those evaluate and the ones before do not, or the reverse."""
        self.key = key
        before, now = ({purpose for _, _, purpose in frames} for frames in (self.named, named))
        if (Purpose.EVALUATING in now) != (Purpose.EVALUATING in before):
            return False
        if Purpose.ACTING in now and Purpose.ACTING not in before:
            self.named = named
        return True

    def of_trained(self, was_trained: Callable[[int], bool]) -> list[ModuleUse]:
        """Return the calls of each module that is trained."""
        return [use for module, use in self.uses.items() if was_trained(module)]

    @property
    def has_eval_mode(self) -> bool:
        """Whether a module was called in eval mode."""
        return any(use.is_evaluated for use in self.uses.values())

    def rollout(self, was_trained: Callable[[int], bool]) -> ModuleUse | None:
        """Return the stretch in which the trained model acts; None if it is called too seldom.

        The targets that follow are not part of it. Before the first update, all modules may be trained later. A policy
        may act by its own call, and learn by those of modules inside it.
        """
        often = [use for use in self.uses.values() if use.calls >= ROLLOUT_CALLS]
        trained = self.of_trained(was_trained)
        acting = [use for use in trained or often if use.calls >= ROLLOUT_CALLS]
        acting = acting or [
            use for use in often if any(was_trained(id(inner)) for inner in modules_within(use.module()))
        ]
        return max(acting, key=lambda use: use.calls, default=None)


class NoGradDecisions:
    """Decides whether calls without gradients that no loader explains feed the next update.

    They do not if the names in the program say that they evaluate, or if the first update did without. Eval mode says
    so too, unless the same functions made the data of the updates before.
    """

    def __init__(self, was_trained: Callable[[int], bool]) -> None:
        self.was_trained = was_trained  # takes the id of a module
        self.callers = Callers()
        self._is_first_update_fed = False
        self._acting: tuple[int, ...] | None = None  # key of the functions that act in eval mode
        self._recurring: tuple[tuple[int, ...], int] | None = None  # key of those that may, and the updates before

    def begin(self, frame: FrameType | None, now_ns: int) -> NoGradRun:
        """Return a new run, whose first call is made in ``frame``."""
        return NoGradRun(now_ns, nearest(frame), self.callers.named(frame), self.callers.hint(frame))

    def purpose(self, run: NoGradRun, *, has_training_event: bool = False) -> Purpose:
        """Return what the names of the calling functions say, see ``Callers``."""
        return self.callers.purpose(run.named, has_training_event=has_training_event)

    def feeds_update(self, run: NoGradRun, purpose: Purpose, is_within_batch: bool, updates: int) -> bool:
        """Return whether ``run`` is part of the step.

        Args:
            run: the calls before a training event.
            purpose: of these calls, from the names.
            is_within_batch: several updates learn from one batch of a loader, and the run lies between two of them.
            updates: how many have been made so far.
        """
        is_needed = self._is_first_update_fed or not updates
        trained = run.of_trained(self.was_trained)
        if purpose in (Purpose.EVALUATING, Purpose.ACTING):
            feeds = purpose is Purpose.ACTING
        elif self._acts_in_eval_mode(run, updates):
            feeds = True
            run.acts = run.hint is Purpose.ACTING
        elif not trained:
            feeds = self._is_first_update_fed or run.calls <= MAX_TEACHER_CALLS
        elif any(use.is_evaluated for use in trained):
            feeds = is_needed and purpose is Purpose.GENERATING
        else:
            feeds = is_needed or is_within_batch
        self._is_first_update_fed |= not updates and feeds
        return feeds

    def is_preparation(self, run: NoGradRun, purpose: Purpose, updates: int) -> bool:
        """Return whether ``run``, which does not feed the update, made data before the training.

        Such calls look like an evaluation, except that an evaluation is named so, or puts the model in eval mode.
        """
        return not updates and Purpose.EVALUATING not in (purpose, run.hint) and not run.has_eval_mode

    def _acts_in_eval_mode(self, run: NoGradRun, updates: int) -> bool:
        """Return whether calls in eval mode made the data of the next update, although no name says so.

        They did in the functions that did so before the first update, by their variables, or before each single update
        from the first one on: an evaluation is not that frequent.
        """
        if run.calls < ROLLOUT_CALLS or not run.has_eval_mode:
            return False
        key = run.begun_in
        if self._acting is None:
            is_said = not updates and run.hint is Purpose.ACTING
            if is_said or (run.hint is not Purpose.EVALUATING and self._recurring == (key, updates - 1)):
                self._acting = key
            elif not updates:
                self._recurring = key, updates
        return key == self._acting
