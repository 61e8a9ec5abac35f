"""Forward passes without gradients in a row: which of them feed an update, decided at the next training event."""

import weakref
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any, Final

from training_profiler.instrumentation.loop_detection.callers import (
    Callers,
    NamedFrame,
    Purpose,
    is_nearest,
    nearest,
    says,
)
from training_profiler.instrumentation.loop_detection.modules import modules_within
from training_profiler.instrumentation.loop_detection.outermost_call import ModuleCall

MAX_MODULES: Final = 64  # calls of further ones are not counted
MAX_TEACHER_CALLS: Final = 64  # of untrained modules before the first update; with more, they prepare the data
ROLLOUT_CALLS: Final = 3  # fewer calls of a model that acts are single forward passes


class ModuleUse:
    """The calls of one module."""

    is_evaluated: bool
    module: Callable[[], Any]
    caller: CodeType | None  # of the calls that may be repeated
    call: ModuleCall | None  # the same call in all of them
    kind: type | None
    calls: int
    end_ns: int
    depth: int  # of the outermost of the methods of modules that make them, from 1; 0 without one

    def __init__(self, begin_ns: int, module: Callable[[], Any] = lambda: None) -> None:
        self.module = module  # None once it is gone
        self.begin_ns = begin_ns
        self.end_ns = begin_ns  # of the call added last
        self.calls = 0
        self.is_evaluated = False  # it was in eval mode
        self.caller = self.call = self.kind = None
        self.around: tuple[int, ...] = ()  # key of the functions around the calls that may be repeated
        self.depth = 0

    def call_ends(self, now_ns: int) -> None:
        """Set the end of the call added last."""
        self.end_ns = now_ns

    def repeats(self) -> None:
        """Add a call that repeats an earlier one."""
        self.calls += 1

    def may_repeat(self, call: ModuleCall, caller: CodeType, around: tuple[int, ...], depth: int) -> None:
        """Let ``call``, which the function ``caller`` made, stand for those like it."""
        self.call, self.kind, self.caller, self.around, self.depth = call, call.kind, caller, around, depth

    def is_repeated(self, module: Any, caller: CodeType) -> bool:
        """Return whether a call of ``module`` by ``caller`` is like that."""
        return self.caller is caller and self.kind is type(module) and self.module() is module

    def has_trained_parts(self, was_trained: Callable[[int], bool]) -> bool:
        """Return whether modules inside this one are trained: a policy may act by its own call and learn by theirs."""
        module = self.module()
        return module is not None and any(was_trained(id(inner)) for inner in modules_within(module))


_NO_USE: Final = ModuleUse(0)  # until the first call


class NoGradRun:
    """The calls without gradients since the last training event."""

    key: tuple[int, ...]
    _uses: dict[int, ModuleUse]  # by id of the module
    latest: ModuleUse
    calls: int

    def __init__(
        self, begin_ns: int, key: tuple[int, ...], named: tuple[NamedFrame, ...], hint: Purpose = Purpose.UNKNOWN
    ) -> None:
        self.key = key  # of the functions around its latest call
        self.begun_in = key  # of those around its first call
        self.hint = hint  # from the variables of the function that made it
        self.begin_ns = begin_ns
        self.calls = 0
        self.is_final = False  # its first events were handed out, so they cannot become an evaluation
        self.is_rollout_open = False
        self.acts = False  # by its variables, although no name says so
        self.named = named
        self._uses = {}
        self.latest = _NO_USE

    def hand_out(self, *, is_rollout: bool) -> None:
        """Make the run final: it is part of the step, and a rollout from its begin on if the model acts."""
        self.is_final, self.is_rollout_open = True, is_rollout

    def feeds_in_eval_mode(self) -> None:
        """Take the run for acting if its variables say so: it makes the data of an update."""
        self.acts = self.hint is Purpose.ACTING

    def call_begins(self, module: Any, now_ns: int) -> None:
        """Add a call of ``module``."""
        self.calls += 1
        use = self._uses.get(id(module))
        if use is None:
            use = ModuleUse(now_ns, weakref.ref(module))
            if len(self._uses) < MAX_MODULES:
                self._uses[id(module)] = use
        use.calls += 1
        use.is_evaluated |= not module.training
        self.latest = use

    def repeated_use(self, module: Any, caller: FrameType) -> ModuleUse | None:
        """Return the calls that one of ``module`` by ``caller`` repeats; None without such."""
        use = self._uses.get(id(module))
        is_repeated = use is not None and use.is_repeated(module, caller.f_code) and is_nearest(self.key, caller)
        return use if is_repeated else None

    def has_called(self, module: Any) -> bool:
        """Return whether ``module`` was called."""
        return id(module) in self._uses

    def use_like(self, module: Any, caller: FrameType) -> ModuleUse | None:
        """Return the calls that one of ``module`` by ``caller`` in a later run is like; None without such."""
        use = self._uses.get(id(module))
        is_like = use is not None and use.is_repeated(module, caller.f_code) and is_nearest(use.around, caller)
        return use if is_like else None

    def repeats(self, use: ModuleUse) -> None:
        """Add a call that repeats those of ``use``."""
        self.calls += 1
        use.repeats()
        self.latest = use

    def moves_to(self, key: tuple[int, ...], named: tuple[NamedFrame, ...]) -> bool:
        """Go on in other functions; return False if those evaluate and the ones before do not, or the reverse."""
        self.key = key
        if says(named, Purpose.EVALUATING) != says(self.named, Purpose.EVALUATING):
            return False
        if says(named, Purpose.ACTING) and not says(self.named, Purpose.ACTING):
            self.named = named
        return True

    def call_ends(self, now_ns: int) -> None:
        """Set the end of the call added last."""
        self.latest.call_ends(now_ns)

    def of_trained(self, was_trained: Callable[[int], bool]) -> list[ModuleUse]:
        """Return the calls of each module that is trained."""
        return [use for module, use in self._uses.items() if was_trained(module)]

    @property
    def has_eval_mode(self) -> bool:
        """Whether a module was called in eval mode."""
        return any(use.is_evaluated for use in self._uses.values())

    @property
    def is_long_in_eval_mode(self) -> bool:
        """Whether a module was in eval mode, in enough calls for a model that acts."""
        return self.calls >= ROLLOUT_CALLS and self.has_eval_mode

    def rollout(self, was_trained: Callable[[int], bool]) -> ModuleUse | None:
        """Return the stretch in which the trained model acts; None if it is called too seldom.

        The targets that follow are not part of it. Before the first update, all modules may be trained later.
        """
        often = [use for use in self._uses.values() if use.calls >= ROLLOUT_CALLS]
        trained = self.of_trained(was_trained)
        acting = [use for use in trained or often if use.calls >= ROLLOUT_CALLS]
        acting = acting or [use for use in often if use.has_trained_parts(was_trained)]
        return max(acting, key=lambda use: use.calls, default=None)


class WithGrad:
    """Forward passes of evaluations that recorded gradients. The training thread adds them, others read them."""

    def __init__(self) -> None:
        self.count = 0
        self.spent_ns = 0
        self._popped = (0, 0)

    def add(self, count: int, spent_ns: int) -> None:
        """Add so many forward passes, and their time."""
        self.count += count
        self.spent_ns += spent_ns

    def pop(self) -> tuple[int, int]:
        """Return what was added since the last call: the number of forward passes and their time in ns."""
        count, spent_ns = self.count, self.spent_ns
        before, self._popped = self._popped, (count, spent_ns)
        return count - before[0], spent_ns - before[1]


class EvalModeCalls:
    """Calls with gradients in eval mode."""

    def __init__(self) -> None:
        self.first: NoGradRun | None = None  # of modules that were in train mode before
        self.modules: set[int] = set()  # ids of these modules
        self.spans: set[int] = set()  # when the spans of all such calls begin

    def add(self, module: int, first: NoGradRun) -> None:
        """Add a call of a module that was in train mode before; ``first`` counts if it is the first."""
        self.first = self.first or first
        self.modules.add(module)

    def clear(self) -> None:
        """Forget the calls: what they were is decided."""
        if self.spans:
            self.first = None
            self.modules.clear()
            self.spans.clear()


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

    def goes_on(self, run: NoGradRun, frame: FrameType | None) -> bool:
        """Return whether a call made in ``frame`` has the purpose of ``run``."""
        return is_nearest(run.key, frame) or run.moves_to(nearest(frame), self.callers.named(frame))

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
        is_first_update = not updates
        is_needed = self._is_first_update_fed or is_first_update
        trained = run.of_trained(self.was_trained)
        if purpose is Purpose.EVALUATING:
            feeds = False
        elif purpose is Purpose.ACTING:
            feeds = True
        elif self._acts_in_eval_mode(run, updates):
            feeds = True
            run.feeds_in_eval_mode()
        elif not trained:
            feeds = self._is_first_update_fed or run.calls <= MAX_TEACHER_CALLS
        elif any(use.is_evaluated for use in trained):
            feeds = is_needed and purpose is Purpose.GENERATING
        else:
            feeds = is_needed or is_within_batch
        self._is_first_update_fed |= is_first_update and feeds
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
        if not run.is_long_in_eval_mode:
            return False
        key = run.begun_in
        if self._acting is None:
            is_said = not updates and run.hint is Purpose.ACTING
            if is_said or (run.hint is not Purpose.EVALUATING and self._recurring == (key, updates - 1)):
                self._acting = key
            elif not updates:
                self._recurring = key, updates
        return key == self._acting
