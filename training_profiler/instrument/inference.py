"""What the training thread does, told by the seams as it happens: sections go to the tape, steps to the session."""

from collections.abc import Callable
from typing import Any, Final

from training_profiler.instrument.calls import Calls
from training_profiler.instrument.codes import Codes, uncounted
from training_profiler.instrument.passes import Kind, Pass
from training_profiler.instrument.rounds import Rounds
from training_profiler.instrument.tape import MOST_HELD, Tape

LONG_END_NS: Final = 200_000  # of the fetch that finds a loader empty


class Inference(Calls):
    """Tells sections and steps from fetches, calls, backward passes and updates of the training thread."""

    def __init__(
        self,
        tape: Tape,
        codes: Codes,
        module_class: type,
        is_grad_enabled: Callable[[], bool],
        end_step: Callable[[int], None],
    ) -> None:
        super().__init__(tape, codes, module_class, is_grad_enabled)
        self.backwards = 0
        self.updates = 0
        self.has_steps_by_hand = False
        self._end_step = end_step
        self._rounds = Rounds(end_step)
        self._buffer = tape.thread_buffer()
        self._end_code = uncounted(codes.data_loading)
        tape.step_end_ns = lambda: self._rounds.pending_ns
        self._make_writers()
        tape.on_clock = self._make_writers

    def _make_writers(self) -> None:
        """Make what writes the events of every step; anew where another clock tells their times."""
        tape, codes = self.tape, self.codes
        self.forward_begins, self.forward_ends = tape.writer(codes.forward), tape.writer(-codes.forward)
        self.update.make_writers()
        self._fetch_begins, self._fetch_ends = tape.writer(codes.data_loading), tape.writer(-codes.data_loading)
        self._backward_begins, self._backward_ends = tape.writer(codes.backward), tape.writer(-codes.backward)

    @property
    def has_trained(self) -> bool:
        """Whether gradients were computed or parameters updated."""
        return self.backwards > 0 or self.updates > 0

    # Fetches

    def usual_fetch_begins(self, iterator: Any) -> Pass | None:
        """Note that the next batch is about to be fetched for the training that goes on; None if that is not sure."""
        one, evaluation = self.evaluation.passes.latest, self.evaluation
        if evaluation.is_unsettled or one is None or one.kind is not Kind.TRAINING or one.iterator() is not iterator:
            return None
        self.frame = None
        self._fetch_begins()
        if one.loader != self._buffer.loader:
            self._buffer.comes_from(one.loader, self.tape.events[-2])
        if one.cycle != evaluation.cycle:
            one.cycle, one.cycle_begin_ns = evaluation.cycle, self.tape.events[-2]
        return one

    def fetch_begins(self, iterator: Any, is_first: bool) -> Pass:
        """Note that a batch is about to be fetched from ``iterator``."""
        one = self.evaluation.passes.of(iterator, is_first)
        now_ns = self.tape.clock()
        self.frame = None
        self.evaluation.fetch_begins(one, self._is_grad_enabled(), now_ns)
        self._buffer.comes_from(one.loader, now_ns)
        self.tape.events.extend((now_ns, self.codes.data_loading))
        if not one.fetches:
            self.tape.events.extend((now_ns, self.codes.first_fetch))
        return one

    def fetch_ends(self, one: Pass) -> None:
        """Note that the batch is there, or that fetching it raised."""
        if one.fetches and one.kind is Kind.TRAINING:
            self._fetch_ends()
            one.fetches += 1
            one.end_ns = self.tape.events[-2]
        else:
            now_ns = self.tape.clock()
            if not one.fetches:
                self.tape.events.extend((now_ns, -self.codes.first_fetch))
            self.tape.events.extend((now_ns, -self.codes.data_loading))
            self.evaluation.fetch_ends(one, now_ns)
        if self.tape.is_too_long():
            self.tape.hold(self.tape.events[-2])

    def fetch_fails(self, one: Pass, is_over: bool) -> None:
        """Note that there was no batch: the loader is empty (``is_over``), or fetching raised."""
        if is_over and one.fetches and self._was_long():
            self.tape.events[-1] = self._end_code  # workers end there: time of the loader's, and no batch
            self.tape.note(-self._end_code)
        else:
            for code in (self.codes.first_fetch, self.codes.data_loading)[bool(one.fetches) :]:
                self.tape.cancel(code)
        if is_over:
            one.has_ended = True
            self.evaluation.pass_ends(one, self.tape.clock())  # an evaluation may end there

    def _was_long(self) -> bool:
        """Return whether the fetch that found nothing took long enough to be worth its time in the report."""
        tape = self.tape
        return tape.ends_with(self.codes.data_loading) and tape.host_clock() - tape.events[-2] > LONG_END_NS

    # Gradients and updates

    def backward_begins(self) -> None:
        """Note that gradients begin to be computed."""
        self.backwards += 1
        self.frame = None
        if self.update.open_code:
            self.update.closure_begins()
        if self.evaluation.is_unsettled:
            self._training_goes_on(self.tape.host_clock())
        self._backward_begins()

    def backward_ends(self) -> None:
        """Note that they are computed, or that it raised."""
        self._backward_ends()
        if self.update.is_in_closure:
            self.update.closure_ends()
        if len(self.tape.events) > MOST_HELD:  # nothing ever updates
            self.tape.hold(self.tape.events[-2])

    def update_begins(self) -> None:
        """Note that an optimizer begins to update."""
        self.frame = None
        if self.evaluation.is_unsettled:
            self._training_goes_on(self.tape.host_clock())
        self.update.open_code = self.codes.optimizer
        self.update.span_begins()

    def update_ends(self, optimizer: Any, has_updated: bool = True) -> None:
        """Note that it has, or that it found that it should not."""
        if self.update.open_code == self.codes.optimizer:
            self.update.open_code = 0
            self.update.span_ends()
            now_ns = self.tape.events[-2]
        else:  # it computed the loss itself
            now_ns = self.update.ends()
        if not has_updated:
            return
        self.updates += 1
        self.evaluation.cycle += 1  # what follows is between steps, or in the next
        if not self.has_steps_by_hand:
            if self._rounds.is_alone and self._rounds.lead == id(optimizer):  # as in nearly all trainings
                self._end_step(now_ns)
            else:
                self._rounds.updated(optimizer, now_ns)

    def steps_come_by_hand(self) -> None:
        """Leave the ends of steps to ``profile_step``."""
        if not self.has_steps_by_hand:
            self.has_steps_by_hand = True
            self._rounds.forget()

    def epoch_changes(self) -> None:
        """Decide what is open, for an epoch begins or ends by hand."""
        self.evaluation.ends()
        self._rounds.end_waiting()

    def finish(self) -> None:
        """Decide what is open: the training has ended."""
        self.evaluation.ends()
        if not self.has_steps_by_hand:
            self._rounds.finish()
        self.tape.hold(self.tape.host_clock())
        # What is held of the program's classes keeps all its globals alive: a file among them would not be written.
        for held in (self._usual, self._proven, self.calls):
            held.clear()
