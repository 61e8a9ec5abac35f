"""Infers sections and steps from the calls on the training thread, which the patches report as they happen."""

from collections.abc import Callable
from typing import Any, Final

from training_profiler.instrumentation.loop_detection.inferred_updates import InferredUpdates
from training_profiler.instrumentation.loop_detection.loader_passes import LoaderPass, PassPhase
from training_profiler.instrumentation.loop_detection.module_calls import ModuleCalls
from training_profiler.instrumentation.loop_detection.pending_events import (
    MAX_PENDING,
    PendingEvents,
    SectionCodes,
    either,
)
from training_profiler.instrumentation.loop_detection.step_detector import StepDetector
from training_profiler.recording.event_codes import field, time_only

_TRAINING: Final = PassPhase.TRAINING  # a member of an enum takes long to find
LONG_END_NS: Final = 200_000  # a longer fetch that finds the loader empty is recorded


class LoopDetector(ModuleCalls):
    """Infers sections and steps from the fetches, calls, backward passes and updates of the training thread."""

    inferred: InferredUpdates | None = field(3)  # while no optimizer of torch exists
    has_manual_steps: bool = field(4)
    made_ns: int = field(
        6
    )  # when the optimizer was made, after calls such as to fill lazy layers; 0 from a gradient on

    def __init__(
        self,
        pending: PendingEvents,
        codes: SectionCodes,
        module_class: type,
        is_grad_enabled: Callable[[], bool],
        end_step: Callable[[int], None],
    ) -> None:
        super().__init__(pending, codes, module_class, is_grad_enabled)
        self.has_manual_steps = False
        self.made_ns = 0
        self.inferred = None
        self._unmarked_ns: int | None = None  # before the end of a backward pass after which the step may have ended
        self.end_step = end_step
        self.steps = StepDetector(end_step)
        self.buffer = pending.buffer
        self._passes = self.phases.passes
        self._end_code, self._update_code = time_only(codes.data_loading), codes.optimizer
        pending.step_end_ns = lambda: self._unmarked_ns or self.steps.pending_ns

    @property
    def has_trained(self) -> bool:
        """Whether gradients were computed or parameters updated."""
        return self.backwards > 0 or self.updates > 0

    @property
    def primary_optimizer(self) -> int:
        """The id of the optimizer whose updates are steps; 0 if it is not known, or if the program marks its steps."""
        return self.steps.primary

    def shadow(self, **methods: Callable[..., Any]) -> Callable[[], None]:
        """Put ``methods`` in front of ours, by their names; return what restores ours, once.

        No call is usual meanwhile, so all of them pass through these methods; later ones cost nothing.
        """
        vars(self).update(methods)
        self.shadows += 1

        def restore() -> None:
            self.shadows -= bool(methods)
            while methods:
                vars(self).pop(methods.popitem()[0], None)

        return restore

    # Fetches

    def fetch_begins(self, iterator: Any, is_first: bool) -> LoaderPass:
        """Record the begin of a fetch from ``iterator``, and return its pass."""
        before = self._passes.latest
        if before is not None and (is_first or before.iterator() is not iterator):
            self._reconsider(before)
        loader_pass = self._passes.of(iterator, is_first)
        if not loader_pass.fetches:
            loader_pass.trained_before = self.backwards + self.updates
        now_ns = self.pending.clock()
        self.frame = None
        self.phases.fetch_begins(loader_pass, self.is_grad_enabled(), now_ns)
        self.buffer.record_loader(loader_pass.loader_id, now_ns)
        self.pending.events.extend((now_ns, self.codes.data_loading))
        if not loader_pass.fetches:
            self.pending.events.extend((now_ns, self.codes.first_fetch))
        return loader_pass

    def _reconsider(self, loader_pass: LoaderPass, *, is_end: bool = False) -> None:
        """Take a pass for an evaluation after all if it is over and its batches never reached a backward pass.

        A pass under way at the end of the run is over if its loader never fed the training before.
        """
        is_over = loader_pass.has_ended or (loader_pass.fetches > 1 and loader_pass.iterator() is None)
        is_over |= is_end and loader_pass.trained_before > 0 and loader_pass.is_first_training_of_loader
        has_trained = self.backwards + self.updates > loader_pass.trained_before
        if is_over and loader_pass.kind is PassPhase.TRAINING and not has_trained:
            self.phases.reconsider(loader_pass)

    def fetch_ends(self, loader_pass: LoaderPass, batch: object = None) -> None:
        """Record the end of a fetch that returned ``batch``, which the inspections of early steps look at."""
        now_ns = self.pending.clock()
        if not loader_pass.fetches:
            self.pending.events.extend((now_ns, -self.codes.first_fetch))
        self.pending.events.extend((now_ns, -self.codes.data_loading))
        if loader_pass.fetches and loader_pass.kind is _TRAINING:
            loader_pass.fetches += 1
        else:
            self.phases.fetch_ends(loader_pass, now_ns, batch)
        self._release_if_full()

    def _release_if_full(self) -> None:
        if len(self.buffer.events) > MAX_PENDING:  # no optimizer ever updates
            self.pending.release(self.pending.events[-2])

    def fetch_fails(self, loader_pass: LoaderPass, is_over: bool) -> None:
        """Record the end of a fetch without a batch: the loader is empty (``is_over``), or fetching raised."""
        pending, code = self.pending, self.codes.data_loading
        is_empty = is_over and loader_pass.fetches and pending.ends_with(code)
        if is_empty and pending.host_clock() - pending.events[-2] > LONG_END_NS:
            pending.events[-1:] = (self._end_code,)  # shutting down workers is data loading, but not a fetch
            pending.record(-self._end_code)
        else:
            for open_code in (self.codes.first_fetch, code)[bool(loader_pass.fetches) :]:
                pending.discard_span(open_code)
        if is_over:
            loader_pass.has_ended = True
            self.phases.pass_ends(loader_pass, pending.clock())  # an evaluation may end there

    # Gradients and updates

    def optimizer_is_made(self) -> None:
        """Remember when an optimizer was made; the model was called before, and computed no gradient so far."""
        self.made_ns = self.pending.host_clock()

    def backward_begins(self) -> None:
        """Record the begin of a backward pass."""
        self.backwards += 1
        self.frame = None
        if self.update.open_code:
            self.update.closure_begins()
        # A gradient that a call without gradients computes, as of an energy for its forces, trains nothing.
        if self.phases.is_unresolved and all(call.has_grad for call in self.calls):
            self._training_event_begins(self.pending.host_clock())
        if self.made_ns:
            self._begin_loop_again()
        self.pending.record(self.codes.backward)

    def _begin_loop_again(self) -> None:
        """Let the loop begin with the first batch or forward pass since the optimizer was made.

        Without a forward pass since then, the first step was under way already.
        """
        made_ns, self.made_ns = self.made_ns, 0
        pending, codes, forward = self.pending, self.codes, either(self.codes.forward)
        if pending.first_since(made_ns, forward):
            begin_ns = pending.first_since(made_ns, (*forward, codes.data_loading, codes.no_grad))
            self.loop_begin_ns = pending.begin_loop(begin_ns)

    def use_inferred_updates(self, inferred: InferredUpdates | None) -> None:
        """Look for updates of the program's own before each backward pass from now on; None: no longer."""
        self.inferred, self._unmarked_ns = inferred, None

    def look_for_update(self, args: tuple[Any, ...], kwargs: dict[str, Any], trains: bool) -> None:
        """End the step before this backward pass if parameters have changed since the last one."""
        if self.inferred is not None and self.inferred.backward_begins(args, kwargs, trains):
            self._end_inferred_step()

    def _end_inferred_step(self) -> None:
        """End a step whose update was not seen: at the first event that may belong to the next one."""
        codes = self.codes
        begins = {*either(codes.forward), *either(codes.no_grad), codes.data_loading, codes.rollout}
        begins |= {codes.validation, codes.checkpoint, time_only(codes.optimizer)}
        at_ns = self.pending.first_after(-codes.backward, begins)
        self._unmarked_ns = None
        if at_ns:
            self.inferred_updates += 1
            self.input_sizes.update_ends(self.inferred_updates, at_ns)  # else each forward pass looks at its inputs
            self.phases.cycle += 1
            if not self.has_manual_steps:
                self.end_step(at_ns)

    def backward_ends(self) -> None:
        """Record the end of a backward pass, also if it raised."""
        now_ns = self.pending.record(-self.codes.backward)
        if self.inferred is not None:
            self.inferred.backward_ends()
            # Only the next backward pass shows an update. The end of this one is kept, too: the search ends there.
            self._unmarked_ns = now_ns - 1
        if self.update.is_in_closure:
            self.update.closure_ends()
        self._release_if_full()

    def update_begins(self) -> None:
        """Record the begin of an optimizer update."""
        self.frame = None
        if self.phases.is_unresolved:
            self._training_event_begins(self.pending.host_clock())
        self.update.open_code = self._update_code
        self.update.span_begins()

    def loss_begins(self) -> None:
        """Record that an update under way begins to compute the loss, before the forward pass shows it."""
        if self.update.open_code:
            self.update.closure_begins()

    def update_ends(self, optimizer: Any, has_updated: bool = True) -> None:
        """Record the end of an optimizer update, or of one that was skipped."""
        if self.update.open_code == self._update_code:
            self.update.open_code = 0
            now_ns = self.pending.record(-self._update_code)
        else:  # its closure computed the loss
            now_ns = self.update.end()
        if has_updated:
            self._updated(optimizer, now_ns)

    def _updated(self, optimizer: Any, now_ns: int) -> None:
        """Count an update that ended at ``now_ns``, and end its step."""
        self.updates = updates = self.updates + 1
        if updates >= self.input_sizes.next_update:
            self.input_sizes.update_ends(updates, now_ns)
            if not updates & (updates - 1):
                self.known_calls.clear()  # learned again ever more seldom: a module may have got parameters
        self.phases.cycle += 1  # what follows is between steps or in the next one
        if not self.has_manual_steps:
            steps = self.steps
            if steps.is_alone and steps.primary == id(optimizer):  # as in nearly all trainings
                self.end_step(now_ns)
            else:
                steps.updated(optimizer, now_ns)

    def use_manual_steps(self) -> None:
        """Leave the ends of steps to ``profile_step``."""
        if not self.has_manual_steps:
            self.has_manual_steps = True
            self.steps.discard_pending()

    def resolve_pending(self) -> None:
        """Resolve everything undecided, before a manual epoch begins or ends."""
        self.phases.end_evaluation()
        self.steps.end_pending()

    def close(self) -> None:
        """Resolve everything undecided at the end of the training."""
        if self._passes.latest is not None:
            self._reconsider(self._passes.latest, is_end=True)
        self.phases.end_evaluation()
        if self.inferred is not None and self.inferred.ends_with_update():
            self._end_inferred_step()
        self.use_inferred_updates(None)
        if not self.has_manual_steps:
            self.steps.close()
        self.pending.release(self.pending.host_clock())
        # A reference to a class of the program keeps its globals alive, and a file among them might not be flushed.
        for references in (self.known_calls, self._confirmed, self.calls):
            references.clear()
