"""What is training and what is evaluation: fetches, forward passes without gradient, and the order they come in."""

import weakref
from collections.abc import Callable
from enum import Enum
from typing import Any, Final

from training_profiler.instrumentation.loop_detection.pending_events import PendingEvents
from training_profiler.instrumentation.loop_detection.section_codes import SectionCodes, time_only
from training_profiler.recording.data_loader import TRAIN, VAL, LoaderCounts

MOST_PASSES: Final = 256  # of which batches were fetched and that have not ended; the oldest are forgotten


class Phase(Enum):
    """What the batches of a pass are for."""

    UNKNOWN = "unknown"
    TRAINING = "training"
    EVALUATION = "evaluation"


class LoaderPass:
    """One pass of one iterator over its loader. Times in ns; 0 is never."""

    __slots__ = (
        "begin_ns",
        "counts",
        "cycle",
        "cycle_begin_ns",
        "end_ns",
        "fetches",
        "has_batch",
        "has_ended",
        "is_evaluated",
        "is_over",
        "iterator",
        "kind",
        "loader",
        "misses",
        "samples",
    )

    def __init__(self, iterator: Any) -> None:
        self.iterator = weakref.ref(iterator)
        self.kind = Phase.UNKNOWN
        self.fetches = 0
        self.has_batch = False  # the last fetch gave one
        self.begin_ns = 0  # of the first fetch
        self.end_ns = 0  # of the last fetch
        self.cycle = -1  # the step it was last fetched in, counted in updates
        self.cycle_begin_ns = 0  # of the first fetch in that step
        self.is_evaluated = False  # its last batch saw calls without gradient before another was fetched
        self.has_ended = False  # its loader was found to be empty
        self.is_over = False  # and no batch of it was used while it went on
        self.counts: LoaderCounts | None = None  # of its loader; None of one that counts itself, and of one not known
        self.loader = 0  # serial of those, 0 for none
        self.samples: int | None = None  # in its batches; None for not counted
        self.misses = 0  # how often training went on although it was taken for evaluation

    def is_of(self, counts: LoaderCounts) -> None:
        """Note which loader it is a pass over."""
        self.counts, self.loader, self.samples = counts, counts.serial, 0
        counts.passes.append(self)

    @property
    def phase(self) -> str | None:
        """What its batches count as; None while that is not known."""
        return _PHASES.get(self.kind)

    @property
    def batches(self) -> int:
        """How many batches were fetched."""
        return self.fetches


_PHASES: Final = {Phase.TRAINING: TRAIN, Phase.EVALUATION: VAL}


class Passes:
    """The passes under way. Iterators are held weakly, for workers end with them."""

    def __init__(self) -> None:
        self.unknown: list[LoaderPass] = []  # with at least one batch fetched
        self.latest: LoaderPass | None = None
        self.loader_of: Callable[[Any], LoaderCounts | None] = lambda iterator: None
        self._by_id: dict[int, LoaderPass] = {}

    def of(self, iterator: Any, is_first: bool) -> LoaderPass:
        """Return the pass of ``iterator``; a new one where it was never seen, or begins anew."""
        latest = self.latest
        if latest is not None and not is_first and latest.iterator() is iterator:
            return latest
        found = self._by_id.get(id(iterator))
        if found is None or is_first or found.iterator() is not iterator:
            found = self._begin(iterator)
        self.latest = found
        return found

    def _begin(self, iterator: Any) -> LoaderPass:
        before = self._by_id.pop(id(iterator), None)
        if before is not None:
            _end(before)
        while len(self._by_id) >= MOST_PASSES:
            _end(self._by_id.pop(next(iter(self._by_id))))
        begun = self._by_id[id(iterator)] = LoaderPass(iterator)
        counts = self.loader_of(iterator)
        if counts is not None:
            begun.is_of(counts)
        return begun

    def is_alone(self, one: LoaderPass) -> bool:
        """Return whether no pass but ``one`` that feeds the training goes on."""
        return not any(
            other is not one and other.kind is Phase.TRAINING and not other.has_ended and other.iterator() is not None
            for other in self._by_id.values()
        )

    def wait_for(self, one: LoaderPass) -> None:
        """Note that it is to be settled what the pass is for."""
        if len(self.unknown) >= MOST_PASSES:
            del self.unknown[0]
        self.unknown.append(one)

    def settle(self, one: LoaderPass, kind: Phase) -> None:
        """Note what the pass is for."""
        one.kind = kind
        if one in self.unknown:
            self.unknown.remove(one)


def _end(one: LoaderPass) -> None:
    if one.counts is not None:
        one.counts.end_pass(one)


FEW_CALLS = 8  # of modules that are never trained: more in a row are no part of a step
STRIKES = 2


class PhaseDetector:
    """Books evaluation under ``validation_epoch``, rewriting the tape where it shows late.

    All of it lies between two training events, which are: a forward pass with gradient in train mode, a
    backward pass, an update. ``is_unresolved`` is whether the next training event has anything to decide.
    """

    def __init__(
        self, pending: PendingEvents, codes: SectionCodes, was_trained: Callable[[int], bool] = lambda module: False
    ) -> None:
        self.is_unresolved = True
        self.passes = Passes()
        self.cycle = 0  # how many updates there were
        self.forwards_without_grad = 0
        self._pending = pending
        self._was_trained = was_trained  # by the id of a module: at this or an earlier call
        self._codes = codes
        self._is_open = False  # an enter of validation_epoch is on the tape
        self._last_ns = 0  # end of the last event of evaluation
        self._run_begin_ns = 0  # of the calls without gradient since the last training event; 0 for none
        self._run_end_ns = 0
        self._run_calls = 0
        self._run_modules: set[int] = set()  # ids of what was called, as long as that is few calls
        self._cautious_end_ns = 0  # end of the last call with gradient of a module in eval mode

    # Fetches

    def fetch_begins(self, one: LoaderPass, is_grad_enabled: bool, now_ns: int) -> None:
        """Note that a batch is about to be fetched; decide what the pass is for, where that shows by now."""
        for other in self.passes.unknown:
            other.is_evaluated |= self._was_evaluated(other)  # before whatever is fetched now could be used
        if one.kind is Phase.UNKNOWN:
            if not is_grad_enabled or (one.fetches and self._was_evaluated(one)):
                self._evaluates(one, now_ns)
            self.is_unresolved = True
        elif one.kind is Phase.EVALUATION:
            if self._run_begin_ns:
                self._open_run()
            elif not self._is_open:
                self._open_before_next(now_ns)
        elif self._is_open:
            self._close()
        if one.cycle != self.cycle:
            one.cycle, one.cycle_begin_ns = self.cycle, now_ns
        if not one.fetches:
            one.begin_ns = now_ns

    def fetch_ends(self, one: LoaderPass, now_ns: int) -> None:
        """Note that a batch was fetched."""
        one.fetches += 1
        one.end_ns = now_ns
        if one.kind is Phase.UNKNOWN and one.fetches == 1:
            self.passes.wait_for(one)
        if one.kind is Phase.EVALUATION:
            self._goes_on(now_ns)

    def pass_ends(self, one: LoaderPass, now_ns: int) -> None:
        """Note that the loader is empty."""
        if one.kind is Phase.UNKNOWN:
            if one.fetches and self._was_evaluated(one):
                self._evaluates(one, now_ns)
            elif not self._run_begin_ns:
                one.is_over = True
        if one.kind is Phase.EVALUATION:
            one.is_over = True
        if one.kind is Phase.EVALUATION and self._is_open:
            # Not closed yet: where a loader reads ahead, its last batches are still to be used.
            self._goes_on(now_ns)

    def _was_evaluated(self, one: LoaderPass) -> bool:
        """Return whether since the last fetch of the pass there was evaluation; training would have settled it."""
        return max(self._run_end_ns, self._cautious_end_ns) > one.end_ns

    def _evaluates(self, one: LoaderPass, now_ns: int) -> None:
        self.passes.settle(one, Phase.EVALUATION)
        if self._is_open:
            if one.fetches:
                self._rename(one.begin_ns)
        elif self._run_begin_ns and self._run_begin_ns < (one.begin_ns or now_ns):
            self._open_run()
        elif one.fetches:
            self._open_at(one.begin_ns, (self._codes.data_loading,))
        else:
            self._open_before_next(now_ns)

    # Calls without gradient

    def call_begins(self, module: int, now_ns: int) -> int:
        """Return the code to note for a forward pass without gradient of the module with this id."""
        self.forwards_without_grad += 1
        if self._goes_on_evaluating():
            return self._codes.forward
        if not self._run_begin_ns:
            self._run_begin_ns = now_ns
            self._run_modules.clear()
            self._run_calls = 0
        self._run_calls += 1
        if self._run_calls <= FEW_CALLS:
            self._run_modules.add(module)
        self.is_unresolved = True
        return self._codes.no_grad

    def _goes_on_evaluating(self) -> bool:
        latest = self.passes.latest
        return self._is_open and (latest is None or latest.kind is not Phase.UNKNOWN)

    def call_ends(self, now_ns: int) -> None:
        """Note that a forward pass without gradient has ended."""
        if self._goes_on_evaluating():
            self._goes_on(now_ns)
        else:
            self._run_end_ns = now_ns
            if self._pending.is_too_long():  # a long evaluation without a loader, such as an episode being played
                self._open_run()
                self._goes_on(now_ns)

    def cautious_call_ends(self, now_ns: int) -> None:
        """Note the end of a forward pass with gradient in eval mode, which may be either."""
        self._cautious_end_ns = now_ns
        latest = self.passes.latest
        if self._is_open and latest is not None and latest.kind is Phase.EVALUATION:
            self._goes_on(now_ns)

    # Training events

    def training_goes_on(self, now_ns: int) -> int:
        """Decide all that is open, for a training event begins; return when the loop begins if this is its first."""
        fed_by = self._resolve_passes()
        step_begin_ns = now_ns
        is_fed = fed_by is not None and fed_by.cycle == self.cycle
        if fed_by is not None and is_fed:
            step_begin_ns = min(step_begin_ns, fed_by.cycle_begin_ns)
        if self._run_begin_ns:
            is_in_step = step_begin_ns < self._run_begin_ns
            # With a loader, what came before the step's batch cannot be a teacher of it.
            is_teacher = (
                not is_fed and self._run_calls <= FEW_CALLS and not any(map(self._was_trained, self._run_modules))
            )
            if is_in_step or is_teacher:
                step_begin_ns = min(step_begin_ns, self._run_begin_ns)
                self._run_begin_ns = 0
            else:
                self._open_run()
        if self._is_open:
            self._close()
        self.is_unresolved = False
        return step_begin_ns

    def ends(self) -> None:
        """End what evaluation there was: a checkpoint follows, an epoch's end, or nothing more."""
        for one in list(self.passes.unknown):
            if self._was_evaluated(one):
                self._evaluates(one, one.end_ns)
        if self._run_begin_ns:
            self._open_run()
        if self._is_open:
            self._close()

    def checkpoint_begins(self) -> None:
        """Note that what has been evaluated is being saved, which ends it, or is a part of it."""
        latest = self.passes.latest
        is_evaluated = latest is not None and (
            latest.kind is Phase.EVALUATION or (latest.kind is Phase.UNKNOWN and self._was_evaluated(latest))
        )
        if latest is None or latest.is_over or not is_evaluated:
            self.ends()

    def _resolve_passes(self) -> LoaderPass | None:
        """Return the pass that feeds the training now, deciding on those that are not known yet."""
        passes, latest = self.passes, self.passes.latest
        feeding = latest if latest is not None and latest.kind is Phase.TRAINING else None
        # A pass that is over, and of which no batch was used, comes last: it may have been one for statistics.
        waiting = sorted(passes.unknown, key=lambda one: (not one.is_over, one.end_ns))
        passes.unknown.clear()
        while waiting:
            one = waiting.pop()
            if one.is_evaluated and (feeding is not None or waiting):
                self._evaluates(one, one.end_ns)
            else:
                one.kind = Phase.TRAINING
                feeding = feeding or one
        if feeding is None and latest is not None and latest.kind is Phase.EVALUATION and latest.cycle == self.cycle:
            latest.misses += 1
            if latest.misses > STRIKES:
                latest.kind = Phase.TRAINING
        return feeding

    # The tape

    def _open_run(self) -> None:
        self._open_at(self._run_begin_ns, (self._codes.no_grad, time_only(self._codes.no_grad)))

    def _open_at(self, begin_ns: int, firsts: tuple[int, ...]) -> None:
        """Open ``validation_epoch``, unless it is, in front of the event at ``begin_ns`` that is one of ``firsts``."""
        if not self._is_open:
            self._pending.insert_before(begin_ns, firsts, self._codes.validation)
            self._is_open = True
            self._last_ns = begin_ns
        self.is_unresolved = True
        self._rename(begin_ns)

    def _rename(self, begin_ns: int) -> None:
        """Let all calls without gradient since ``begin_ns`` be forward passes of the evaluation that is open."""
        self._pending.change(begin_ns, self._codes.renamed_in_evaluation)
        self._last_ns = max(self._last_ns, self._run_end_ns, self._cautious_end_ns)
        self._run_begin_ns = 0

    def _open_before_next(self, now_ns: int) -> None:
        self._pending.events.extend((now_ns, self._codes.validation))
        self._is_open = self.is_unresolved = True
        self._last_ns = now_ns

    def _goes_on(self, now_ns: int) -> None:
        self._last_ns = now_ns
        self._pending.hold(now_ns)

    def _close(self) -> None:
        self._pending.insert_exit(self._last_ns, self._codes.validation)
        self._is_open = False
