"""Separates training from evaluation, by the order of fetches, forward passes without gradients and training events."""

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any, Final

from training_profiler.instrumentation.loop_detection.loader_passes import (
    MAX_PASSES,
    FirstEvaluations,
    LoaderPass,
    Passes,
    PassPhase,
)
from training_profiler.instrumentation.loop_detection.no_grad_runs import NoGradDecisions, NoGradRun, Purpose, nearest
from training_profiler.instrumentation.loop_detection.pending_events import (
    MAX_PENDING,
    PendingEvents,
    SectionCodes,
    either,
)
from training_profiler.recording.event_codes import Fields, field, time_only

_UNKNOWN: Final = PassPhase.UNKNOWN  # a member of an enum takes long to find
MAX_MISSES: Final = 2  # with more, a pass taken for evaluation is training after all


class PhaseDetector(Fields):
    """Records evaluation as ``validation_epoch`` and acting as ``rollout``, rewriting pending events if it shows late.

    Both lie between two training events: a forward pass with gradients in train mode, a backward pass, or an
    update. ``is_unresolved`` is whether the next training event has anything to decide.
    """

    is_unresolved: bool = field(0)
    cycle: int = field(1)  # number of updates so far
    run: NoGradRun | None = field(2)  # calls without gradients since the last training event
    is_open: bool = field(3)  # validation_epoch has been entered
    repeated: int = field(4)  # forward passes that C has recorded
    _run_end_ns: int = field(5)

    def __init__(
        self, pending: PendingEvents, codes: SectionCodes, was_trained: Callable[[int], bool] = lambda module: False
    ) -> None:
        self._pending, self._codes = pending, codes
        self.is_unresolved = True
        self.passes = Passes()
        self.cycle = 0
        self.forwards_without_grad = self.repeated = 0  # the former by Python
        self.is_open = False
        self._begin_ns = self._last_ns = 0  # of the evaluation, and end of its last event
        self.first_evaluations = FirstEvaluations(self.passes)
        # The number of forward passes of evaluations that recorded gradients, and their ns; taken from other threads.
        self.with_grad: list[tuple[int, int]] = []
        self._no_grad = NoGradDecisions(was_trained)
        self.run, self._run_end_ns = None, 0
        # Calls with gradients in eval mode since the last training event.
        self._eval_mode_end_ns = 0  # of the last of them, also before that
        self._eval_mode_begins: set[int] = set()  # of their spans
        self._switched: set[int] = set()  # ids of their modules that were in train mode before
        self._first_switched: NoGradRun | None = None
        self._evaluated = 0  # the loader of the last pass that was evaluated to its end; 0 without any

    # Fetches

    def fetch_begins(self, loader_pass: LoaderPass, is_grad_enabled: bool, now_ns: int) -> None:
        """Handle the begin of a fetch, and decide the phase of the pass if it shows by now."""
        for unknown in self.passes.unknown:
            unknown.is_evaluated |= self._was_evaluated(unknown)  # the batch fetched now was not used yet
        if self.is_open and not loader_pass.fetches and 0 != self._evaluated != loader_pass.loader_id != 0:
            self._close()  # a test after a validation
        if loader_pass.kind is PassPhase.UNKNOWN:
            if not is_grad_enabled or (loader_pass.fetches and self._was_evaluated(loader_pass)):
                self._evaluates(loader_pass, now_ns)
            self.is_unresolved = True
        elif loader_pass.kind is PassPhase.EVALUATION:
            if self.run is not None:
                self._open_run(self.run, now_ns)
            elif not self.is_open:
                self._open_before_next(now_ns)
        elif self.is_open:
            self._close()
        if loader_pass.cycle != self.cycle:
            loader_pass.cycle, loader_pass.cycle_begin_ns = self.cycle, now_ns
        if not loader_pass.fetches:
            loader_pass.begin_ns = now_ns

    def fetch_ends(self, loader_pass: LoaderPass, now_ns: int, batch: object = None) -> None:
        """Handle a fetched batch."""
        loader_pass.fetches += 1
        loader_pass.end_ns = now_ns
        if loader_pass.kind is PassPhase.UNKNOWN:
            self.first_evaluations.fetched(loader_pass, batch)
            if loader_pass.fetches == 1:
                self.passes.unknown.append(loader_pass)
                del self.passes.unknown[:-MAX_PASSES]
        if loader_pass.kind is PassPhase.EVALUATION:
            self._continue(now_ns)

    def pass_ends(self, loader_pass: LoaderPass, now_ns: int) -> None:
        """Handle the end of a pass: the loader is empty."""
        if loader_pass.kind is PassPhase.UNKNOWN:
            if loader_pass.fetches and self._was_evaluated(loader_pass):
                self._evaluates(loader_pass, now_ns)
            elif self.run is None:
                loader_pass.is_over = True
        if loader_pass.kind is PassPhase.EVALUATION:
            loader_pass.is_over = True
            self._evaluated = loader_pass.loader_id
        if loader_pass.kind is PassPhase.EVALUATION and self.is_open:
            # Not closed yet: if a loader reads ahead, its last batches are still to be used.
            self._continue(now_ns)

    def _was_evaluated(self, loader_pass: LoaderPass) -> bool:
        """Return whether there was evaluation since the pass's last fetch; training would have resolved the pass."""
        return max(self._run_end_ns, self._eval_mode_end_ns) > loader_pass.end_ns

    def _evaluates(self, loader_pass: LoaderPass, now_ns: int) -> None:
        loader_pass.kind = PassPhase.EVALUATION
        if loader_pass in self.passes.unknown:
            self.passes.unknown.remove(loader_pass)
        self.first_evaluations.passes(loader_pass)
        if self.is_open:
            if loader_pass.fetches:
                self._recode(loader_pass.begin_ns)
        elif self.run is not None and self.run.begin_ns < (loader_pass.begin_ns or now_ns):
            self._open_run(self.run, now_ns)
        else:
            begin_ns = self.with_workers(loader_pass.begin_ns if loader_pass.fetches else now_ns)
            if loader_pass.fetches or begin_ns < now_ns:
                self._open_at(begin_ns, either(self._codes.data_loading))
            else:
                self._open_before_next(now_ns)

    def with_workers(self, fetch_ns: int) -> int:
        """Return when a pass begins whose first fetch is at ``fetch_ns``, with the start of its workers."""
        codes = self._codes
        return self._pending.with_spans_before(
            fetch_ns, codes.data_loading, (time_only(codes.data_loading), codes.worker_start)
        )

    # Calls without gradients

    def no_grad_call_begins(self, module: Any, frame: FrameType | None, now_ns: int) -> int:
        """Return the code of a forward pass without gradients of ``module``, called in ``frame``."""
        self.forwards_without_grad += 1
        if self.is_open and self._is_phase_known():
            return self._codes.forward
        key, run = nearest(frame), self.run
        if run is not None and run.key != key and not run.moves_to(key, self._no_grad.callers.named(frame)):
            self._end_run(run)
        if self.run is None:
            self.run = self._no_grad.begin(frame, now_ns)
        self.run.call_begins(module, now_ns)
        self.is_unresolved = True
        return self._codes.no_grad

    def _is_phase_known(self) -> bool:
        latest = self.passes.latest
        return latest is None or latest.kind is not _UNKNOWN

    def no_grad_call_ends(self, now_ns: int) -> None:
        """Handle the end of a forward pass without gradients."""
        if self.is_open and self._is_phase_known():
            self._continue(now_ns)
            return
        self._run_end_ns, run = now_ns, self.run
        use = None if run is None else run.latest
        if run is not None and use is not None:
            use.end_ns = now_ns
            if len(self._pending.events) > MAX_PENDING:  # sampling, a long evaluation without a loader or a rollout
                self._decide_early(run, now_ns)

    # Calls with gradients that no backward pass follows

    def eval_mode_call_ends(self, begin_ns: int, now_ns: int, module: int) -> None:
        """Handle the end of a forward pass with gradients in eval mode, which may be training or evaluation.

        Args:
            begin_ns: when it began; 0 if it continues another call.
            now_ns: its end.
            module: id of the module called if that was in train mode before; 0 otherwise.
        """
        self._eval_mode_end_ns = now_ns
        latest = self.passes.latest
        if self.is_open and latest is not None and latest.kind is PassPhase.EVALUATION:
            if begin_ns:
                self.with_grad.append((1, now_ns - begin_ns))
            self._continue(now_ns)
        elif begin_ns and (module or self.is_unresolved):
            self._eval_mode_begins.add(begin_ns)
            if module:
                self.is_unresolved = True
                self._first_switched = self._first_switched or self._no_grad.begin(sys._getframe(1), begin_ns)
                self._switched.add(module)

    def _open_with_grad(self, first: NoGradRun) -> None:
        if not self.is_open:
            self._open_at(first.begin_ns, either(self._codes.forward))

    def reconsider(self, loader_pass: LoaderPass) -> None:
        """Turn a pass into an evaluation: it is over, and none of its batches reached a backward pass.

        Its calls had gradients in train mode, so each seemed to be the begin of a step.
        """
        codes, pending = self._codes, self._pending
        if not pending.is_held_back(loader_pass.begin_ns):
            return
        spans = pending.spans_since(loader_pass.begin_ns, codes.forward)
        if not spans[0]:
            return  # its batches were only read
        self.with_grad.append(spans)
        ends = {-codes.forward, -time_only(codes.forward), -codes.data_loading}
        end_ns = next(at_ns for at_ns, code in pending.latest_first() if code in ends)
        loader_pass.kind = PassPhase.EVALUATION
        begin_ns = self.with_workers(loader_pass.begin_ns)
        pending.insert_before(begin_ns, either(codes.data_loading), codes.validation)
        pending.insert_exit(end_ns, codes.validation)

    # Training events

    def training_event_begins(self, now_ns: int, module: int = 0) -> int:
        """Resolve everything undecided; return when the loop begins if this is the first training event.

        Args:
            now_ns: the time.
            module: id of the module whose forward pass the event is; 0 for a backward pass or an update.
        """
        unknown = [each for each in self.passes.unknown if not each.is_evaluated]
        fed_by = self._resolve_passes()
        step_begin_ns = now_ns
        is_fed = fed_by is not None and fed_by.cycle == self.cycle
        if fed_by is not None and is_fed:
            step_begin_ns = min(step_begin_ns, fed_by.cycle_begin_ns)
        if self.run is not None:
            step_begin_ns = self._resolve_run(self.run, fed_by, step_begin_ns)
        first = self._first_switched
        if first is not None and first.begin_ns <= step_begin_ns:
            # Calls in eval mode were an evaluation if names say so, or if the mode was switched for this module.
            purpose = self._no_grad.purpose(first, has_training_event=True)
            if purpose is Purpose.EVALUATING or (module in self._switched and purpose is Purpose.UNKNOWN):
                self._open_with_grad(first)
        if self.is_open:
            self._close()
        self._forget_eval_mode()
        self.is_unresolved = False
        self.first_evaluations.training_begins(unknown, fed_by)
        return step_begin_ns

    def _resolve_run(self, run: NoGradRun, fed_by: LoaderPass | None, step_begin_ns: int) -> int:
        """Decide whether the calls without gradients are part of the step; return when the step begins."""
        purpose = self._no_grad.purpose(run, has_training_event=True)
        is_fed = fed_by is not None and fed_by.cycle == self.cycle
        if step_begin_ns < run.begin_ns:  # its batch was fetched before
            is_in_step = purpose is not Purpose.EVALUATING or not run.of_trained(self._no_grad.was_trained)
        elif fed_by is not None and is_fed:  # calls before its batch was fetched feed it only if they made the data
            is_in_step = purpose is Purpose.ACTING and fed_by.begin_ns >= run.begin_ns
        else:
            is_within_batch = fed_by is not None and not fed_by.has_ended
            is_in_step = self._no_grad.feeds_update(run, purpose, is_within_batch, self.cycle)
        is_preparation = not is_in_step and self._no_grad.is_preparation(run, purpose, self.cycle)
        if is_preparation and not run.is_rollout_open:
            self.run = None
        elif is_in_step or run.is_final:
            self._keep_in_step(run, purpose)
            return min(step_begin_ns, run.begin_ns)
        else:
            self._open_run(run, run.begin_ns)
        return step_begin_ns

    def _end_run(self, run: NoGradRun) -> None:
        """Decide what a run is that ends before the next training event: other calls without gradients follow."""
        purpose = self._no_grad.purpose(run)
        if run.is_final or self._no_grad.feeds_update(run, purpose, False, self.cycle):
            self._keep_in_step(run, purpose)
        elif self._no_grad.is_preparation(run, purpose, self.cycle):
            self.run = None
        else:
            self._open_run(run, run.begin_ns)
            self._close()

    def _keep_in_step(self, run: NoGradRun, purpose: Purpose) -> None:
        """Let the calls be part of the step, and mark as ``rollout`` what lies between those of a model that acts."""
        self.run = None
        if run.is_rollout_open:
            self._pending.insert_exit(self._run_end_ns, self._codes.rollout)
        elif (run.acts or purpose is Purpose.ACTING) and not run.is_final:
            acting = run.rollout(self._no_grad.was_trained)
            if acting is not None:
                codes = either(self._codes.no_grad)
                begin_ns, end_ns = self._pending.around(acting.begin_ns, acting.end_ns, codes)
                self._pending.insert_before(begin_ns, codes, self._codes.rollout)
                self._pending.insert_exit(end_ns, self._codes.rollout)

    def _decide_early(self, run: NoGradRun, now_ns: int) -> None:
        """Decide what a run is that has too many calls to wait for the next training event."""
        purpose = self._no_grad.purpose(run)
        if not run.is_final:
            is_fed = self._no_grad.feeds_update(run, purpose, False, self.cycle)
            if not is_fed and not self._no_grad.is_preparation(run, purpose, self.cycle):
                self._open_run(run, now_ns)
                self._continue(now_ns)
                return
            run.is_final, run.is_rollout_open = True, run.acts or purpose is Purpose.ACTING
            if run.is_rollout_open:
                self._pending.insert_before(run.begin_ns, either(self._codes.no_grad), self._codes.rollout)
        self._pending.release(now_ns)

    def end_evaluation(self, is_end: bool = True) -> None:
        """End the evaluation before a checkpoint, the end of an epoch, or the end of the run (``is_end``)."""
        for loader_pass in list(self.passes.unknown):
            if self._was_evaluated(loader_pass):
                self._evaluates(loader_pass, loader_pass.end_ns)
        run = self.run
        if run is not None:
            purpose = self._no_grad.purpose(run)
            never_trained = self._no_grad.is_preparation(run, purpose, self.cycle)  # as in evolution strategies
            if is_end and (run.is_final or never_trained or purpose is Purpose.ACTING):
                self._keep_in_step(run, purpose)
            elif is_end or not (run.is_final or self._no_grad.feeds_update(run, purpose, False, self.cycle)):
                self._open_run(run, run.begin_ns)
        first = self._first_switched
        if first is not None and self._no_grad.purpose(first) is not Purpose.ACTING:
            self._open_with_grad(first)
        if self.is_open:
            self._close()

    def checkpoint_begins(self) -> None:
        """Handle a checkpoint, which ends the evaluation before it unless that is still under way."""
        latest = self.passes.latest
        is_evaluated = latest is not None and (
            latest.kind is PassPhase.EVALUATION or (latest.kind is PassPhase.UNKNOWN and self._was_evaluated(latest))
        )
        if latest is None or latest.is_over or not is_evaluated:
            self.end_evaluation(is_end=False)

    def _resolve_passes(self) -> LoaderPass | None:
        """Return the pass that feeds the training now, and resolve all unknown passes."""
        passes, latest = self.passes, self.passes.latest
        feeding = latest if latest is not None and latest.kind is PassPhase.TRAINING else None
        # A finished pass without used batches comes last: it may have computed statistics of the data.
        waiting = sorted(passes.unknown, key=lambda loader_pass: (not loader_pass.is_over, loader_pass.end_ns))
        passes.unknown.clear()
        while waiting:
            loader_pass = waiting.pop()
            if loader_pass.is_evaluated and (feeding is not None or waiting):
                self._evaluates(loader_pass, loader_pass.end_ns)
            else:
                loader_pass.kind = PassPhase.TRAINING
                feeding = feeding or loader_pass
        if (
            feeding is None
            and latest is not None
            and latest.kind is PassPhase.EVALUATION
            and latest.cycle == self.cycle
        ):
            latest.misses += 1
            if latest.misses > MAX_MISSES:
                latest.kind = PassPhase.TRAINING
        return feeding

    # Pending events

    def _open_run(self, run: NoGradRun, now_ns: int) -> None:
        if run.is_final:  # too late
            self._keep_in_step(run, Purpose.UNKNOWN)
            self._open_before_next(now_ns)
        else:
            self._open_at(run.begin_ns, either(self._codes.no_grad))

    def _open_at(self, begin_ns: int, firsts: tuple[int, ...]) -> None:
        """Enter ``validation_epoch`` if needed, before the event at ``begin_ns`` that is one of ``firsts``."""
        if not self.is_open:
            self._pending.insert_before(begin_ns, firsts, self._codes.validation)
            self.is_open = True
            self._begin_ns = self._last_ns = begin_ns
        self.is_unresolved = True
        self._recode(begin_ns)

    def _recode(self, begin_ns: int) -> None:
        """Turn calls since ``begin_ns`` into forward passes of the open evaluation."""
        if self._eval_mode_begins:
            self.with_grad.append(self._pending.spans_since(begin_ns, self._codes.forward, self._eval_mode_begins))
        self._forget_eval_mode()
        self._pending.recode(begin_ns, self._codes.codes_in_evaluation)
        self._last_ns = max(self._last_ns, self._run_end_ns, self._eval_mode_end_ns)
        self.run = None

    def _forget_eval_mode(self) -> None:
        if self._eval_mode_begins:
            self._first_switched = None
            self._switched.clear()
            self._eval_mode_begins.clear()

    def _open_before_next(self, now_ns: int) -> None:
        self._pending.events.extend((now_ns, self._codes.validation))
        self.is_open = self.is_unresolved = True
        self._begin_ns = self._last_ns = now_ns

    def _continue(self, now_ns: int) -> None:
        self._last_ns = now_ns
        self._pending.release(now_ns)

    def _close(self) -> None:
        self._pending.insert_exit(self._last_ns, self._codes.validation)
        self.is_open = False
        self.first_evaluations.ended(self._last_ns - self._begin_ns)
        self._evaluated = 0
