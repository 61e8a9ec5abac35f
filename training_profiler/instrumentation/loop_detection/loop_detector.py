"""Infers sections and steps from the calls on the training thread, which the patches report as they happen."""

from collections.abc import Callable
from typing import Any, Final

from training_profiler.instrumentation.loop_detection.inferred_updates import InferredUpdates
from training_profiler.instrumentation.loop_detection.loader_passes import LoaderPass, PassPhase
from training_profiler.instrumentation.loop_detection.loop_begin import EarlyCalls
from training_profiler.instrumentation.loop_detection.module_calls import ModuleCalls
from training_profiler.instrumentation.loop_detection.pending_events import MAX_PENDING, PendingEvents
from training_profiler.instrumentation.loop_detection.section_codes import SectionCodes
from training_profiler.instrumentation.loop_detection.step_detector import StepDetector
from training_profiler.recording.event_codes import time_only
from training_profiler.recording.fields import field

_TRAINING: Final = PassPhase.TRAINING  # a member of an enum takes long to find
LONG_END_NS: Final = 200_000  # a longer fetch that finds the loader empty is recorded


class LoopDetector(ModuleCalls):
    """Infers sections and steps from the fetches, calls, backward passes and updates of the training thread."""

    frame: tuple[int, int] | None = field(0)  # the method whose calls are one forward pass
    backwards: int = field(1)
    updates: int = field(2)
    inferred: InferredUpdates | None = field(3)  # while no optimizer of torch exists
    has_manual_steps: bool = field(4)
    shadows: int = field(5)  # methods in front of ours: no call is usual meanwhile

    def __init__(
        self,
        pending: PendingEvents,
        codes: SectionCodes,
        module_class: type,
        is_grad_enabled: Callable[[], bool],
        end_step: Callable[[int], None],
    ) -> None:
        super().__init__(pending, codes, module_class, is_grad_enabled)
        self.backwards = 0
        self.updates = 0
        self.has_manual_steps = False
        self.early = EarlyCalls()
        self.inferred = None
        self.inferred_updates = 0
        self._unmarked_ns: int | None = None  # before the end of a backward pass after which the step may have ended
        self.end_step = end_step
        self.steps = StepDetector(end_step)
        self.buffer = pending.thread_buffer()
        self._passes = self.phases.passes
        self._end_code, self._update_code = time_only(codes.data_loading), codes.optimizer
        pending.step_end_ns = lambda: self._unmarked_ns or self.steps.pending_ns
        self.shadows = 0
        self._on_new_writers: Callable[[], None] = lambda: None
        self._make_writers()
        pending.on_clock_change = self._make_writers

    def _make_writers(self) -> None:
        """Create the writers of every step's events, again for each new clock."""
        pending, codes = self.pending, self.codes
        self.forward_begins, self.forward_ends = pending.writer(codes.forward), pending.writer(-codes.forward)
        self.update.make_writers()
        self._fetch_begins, self._fetch_ends = pending.writer(codes.data_loading), pending.writer(-codes.data_loading)
        self._backward_begins, self._backward_ends = pending.writer(codes.backward), pending.writer(-codes.backward)
        self._on_new_writers()

    def after_new_writers(self, do: Callable[[], None]) -> None:
        """Call ``do`` now, and whenever the writers of events are others."""
        self._on_new_writers = do
        do()

    def use_shadow(self, more: int) -> None:
        """Count methods that stand in front of ours, or no longer."""
        self.shadows += more

    @property
    def has_trained(self) -> bool:
        """Whether gradients were computed or parameters updated."""
        return self.backwards > 0 or self.updates > 0

    @property
    def primary_optimizer(self) -> int:
        """The id of the optimizer whose updates are steps; 0 if it is not known, or if the program marks its steps."""
        return self.steps.primary

    # Fetches

    def usual_fetch_begins(self, iterator: Any) -> LoaderPass | None:
        """Record the begin of a fetch that surely is for the training under way, and return its pass; else None.

        The first fetch of a pass is another, and so is one whose CPU time is measured.
        """
        phases, loader_pass = self.phases, self._passes.latest
        if (
            loader_pass is None
            or phases.is_unresolved
            or self.calls
            or loader_pass.kind is not _TRAINING
            or loader_pass.fetches >= loader_pass.measured_at
            or loader_pass.iterator() is not iterator
            or getattr(iterator, "_num_yielded", 1) == 0
        ):
            return None
        self.frame = None
        self._fetch_begins()
        if loader_pass.loader_id != self.buffer.loader_id:
            self.buffer.record_loader(loader_pass.loader_id, self.pending.events[-2])
        if loader_pass.cycle != phases.cycle:
            loader_pass.cycle, loader_pass.cycle_begin_ns = phases.cycle, self.pending.events[-2]
        return loader_pass

    def fetch_begins(self, iterator: Any, is_first: bool) -> LoaderPass:
        """Record the begin of any other fetch from ``iterator``."""
        before = self.phases.passes.latest
        if before is not None and (is_first or before.iterator() is not iterator):
            self._reconsider(before)
        loader_pass = self.phases.passes.of(iterator, is_first)
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

    def fetch_ends(self, loader_pass: LoaderPass) -> None:
        """Record the end of a fetch that returned a batch."""
        if loader_pass.fetches and loader_pass.kind is _TRAINING:
            self._fetch_ends()
            loader_pass.fetches += 1
        else:
            now_ns = self.pending.clock()
            if not loader_pass.fetches:
                self.pending.events.extend((now_ns, -self.codes.first_fetch))
            self.pending.events.extend((now_ns, -self.codes.data_loading))
            self.phases.fetch_ends(loader_pass, now_ns)
        if len(self.buffer.events) > MAX_PENDING:
            self.pending.release(self.pending.events[-2])

    def fetch_fails(self, loader_pass: LoaderPass, is_over: bool) -> None:
        """Record the end of a fetch without a batch: the loader is empty (``is_over``), or fetching raised."""
        if is_over and loader_pass.fetches and self._was_long():
            self.pending.events[-1] = self._end_code  # shutting down workers is data loading, but not a fetch
            self.pending.record(-self._end_code)
        else:
            for code in (self.codes.first_fetch, self.codes.data_loading)[bool(loader_pass.fetches) :]:
                self.pending.discard_span(code)
        if is_over:
            loader_pass.has_ended = True
            self.phases.pass_ends(loader_pass, self.pending.clock())  # an evaluation may end there

    def _was_long(self) -> bool:
        """Return whether the fetch that found the loader empty took long enough to be recorded."""
        pending = self.pending
        return pending.ends_with(self.codes.data_loading) and pending.host_clock() - pending.events[-2] > LONG_END_NS

    # Gradients and updates

    def backward_begins(self) -> None:
        """Record the begin of a backward pass."""
        self.backwards += 1
        self.frame = None
        if self.update.open_code:
            self.update.closure_begins()
        # A gradient that a call without gradients computes, as of an energy for its forces, trains nothing.
        if self.phases.is_unresolved and all(call.has_grad for call in self.calls):
            self._training_event_begins(self.pending.host_clock())
        if self.early.made_ns:
            self.loop_begin_ns = self.early.begin_again(self.pending, self.codes) or self.loop_begin_ns
        self._backward_begins()

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
        begins = {codes.data_loading, codes.forward, time_only(codes.forward), codes.no_grad, time_only(codes.no_grad)}
        begins |= {codes.rollout, codes.validation, codes.checkpoint, time_only(codes.optimizer)}
        at_ns = self.pending.first_after(-codes.backward, begins)
        self._unmarked_ns = None
        if at_ns:
            self.inferred_updates += 1
            self.phases.cycle += 1
            if not self.has_manual_steps:
                self.end_step(at_ns)

    def backward_ends(self) -> None:
        """Record the end of a backward pass, also if it raised."""
        self._backward_ends()
        if self.inferred is not None:
            self.inferred.backward_ends()
            # Only the next backward pass shows an update. The end of this one is kept, too: the search ends there.
            self._unmarked_ns = self.pending.events[-2] - 1
        if self.update.is_in_closure:
            self.update.closure_ends()
        if len(self.buffer.events) > MAX_PENDING:  # no optimizer ever updates
            self.pending.release(self.pending.events[-2])

    def update_begins(self) -> None:
        """Record the begin of an optimizer update."""
        self.frame = None
        if self.phases.is_unresolved:
            self._training_event_begins(self.pending.host_clock())
        self.update.open_code = self._update_code
        self.update.span_begins()

    def transfer_begins(self) -> None:
        """Record that tensors begin to move to a device."""
        self.pending.record(self.codes.data_transfer)

    def transfer_ends(self) -> None:
        """Record the end of that."""
        self.pending.record(-self.codes.data_transfer)

    def loss_begins(self) -> None:
        """Record that an update under way begins to compute the loss, before the forward pass shows it."""
        if self.update.open_code:
            self.update.closure_begins()

    def update_ends(self, optimizer: Any, has_updated: bool = True) -> None:
        """Record the end of an optimizer update, or of one that was skipped."""
        if self.update.open_code == self._update_code:
            self.update.open_code = 0
            self.update.span_ends()
            now_ns = self._events[-2]
        else:  # its closure computed the loss
            now_ns = self.update.end()
        if has_updated:
            self.update_is_recorded(optimizer, now_ns)

    def update_is_recorded(self, optimizer: Any, now_ns: int) -> None:
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

    def drop_update(self) -> None:
        """Forget the update under way: it has changed nothing."""
        self.update.drop()

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
        if self.phases.passes.latest is not None:
            self._reconsider(self.phases.passes.latest, is_end=True)
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
