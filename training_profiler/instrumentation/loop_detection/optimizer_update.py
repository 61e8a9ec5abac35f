"""The span of an optimizer update, without the loss that its closure computes."""

from typing import Final

from training_profiler.instrumentation.loop_detection.pending_events import PendingEvents
from training_profiler.recording.event_codes import Fields, field, time_only

AT_ONCE_NS: Final = 50_000  # from one call to the next in the same program, with what the patches take


class OptimizerUpdate(Fields):
    """An optimizer update under way. If it computes the loss itself, by a closure, that time is not its own."""

    open_code: int = field(0)  # of the open span; 0 for none, or while the loss is computed
    is_in_closure: bool = field(1)
    is_scaling: bool = field(2)  # in a method of GradScaler

    def __init__(self, pending: PendingEvents, code: int) -> None:
        self.open_code = 0
        self._pending, self._code, self._pieces_code = pending, code, time_only(code)
        self.had_closure = self.has_closures = False  # of this update, and of any so far
        self.is_in_closure = self.is_scaling = self._has_piece = False

    def span_begins(self) -> None:
        """Record that the optimizer begins to update, perhaps within a method of GradScaler."""
        if self._has_piece:
            self._end_piece()
        self._pending.record(self._code)

    def replay_begins(self, code: int) -> None:
        """Record that the update that has just begun is the replay of a graph, with the code of such replays."""
        self.open_code = code
        self._pending.recode_last(self._code, code)

    def scaling_begins(self) -> None:
        """Record that a method of GradScaler begins. Its time is in pieces around an update that it makes."""
        self.is_scaling = True
        self.resume_scaling()

    def scaling_ends(self) -> None:
        """Record that the method of GradScaler has ended, or raised; an update that raised ends later."""
        self._end_piece()
        self.is_scaling = False

    def resume_scaling(self) -> None:
        """Record that a method of GradScaler goes on after its update, and after what the end of a step brings."""
        if self.is_scaling and not self._has_piece:
            self._has_piece = True
            self._pending.record(self._pieces_code)

    def _end_piece(self) -> None:
        if self._has_piece:
            self._has_piece = False
            self._pending.record(-self._pieces_code)

    def clearing_begins(self) -> int:
        """Record that clearing of gradients begins; return the code for ``clearing_ends``.

        Right after the update, both are one span. At the begin of the next step, what lies between is not the
        optimizer's time.
        """
        pending, code = self._pending, self._code
        if pending.ends_with(-code) and pending.host_clock() - pending.events[-2] <= AT_ONCE_NS:
            pending.remove_last(-code)
            return code
        pending.record(self._pieces_code)
        return self._pieces_code

    def clearing_ends(self, code: int) -> None:
        """Record that gradients are cleared."""
        self._pending.record(-code)

    def closure_begins(self) -> None:
        """Record that the closure begins to compute the loss."""
        if self.open_code == self._code:
            self.open_code = self._pieces_code
            self._pending.recode_last(self._code, self._pieces_code)
        self._leave()
        self.is_in_closure = self.had_closure = self.has_closures = True

    def closure_ends(self) -> None:
        """Record that the gradients are computed and the update continues."""
        self.is_in_closure = False
        self.open_code = self._pieces_code
        self._pending.record(self.open_code)

    def drop(self) -> None:
        """Forget the update under way: it has changed nothing."""
        self._end()
        events = self._pending.events
        if list(events[-3::2]) == [self._code, -self._code]:
            del events[-4:]
        self.resume_scaling()

    def end(self) -> int:
        """Record that the update has ended, or raised some time ago; return the time in ns."""
        now_ns = self._end()
        self.resume_scaling()
        return now_ns

    def _end(self) -> int:
        self.is_in_closure = False
        if self.had_closure:
            self.had_closure = False
            if self.open_code:
                self._pending.recode_last(self.open_code, self._code)
            else:
                self._pending.record(self._code)
            self.open_code = self._code
        return self._leave()

    def _leave(self) -> int:
        now_ns = self._pending.clock()
        if self.open_code:
            self._pending.events.extend((now_ns, -self.open_code))
            self.open_code = 0
        return now_ns
