"""The spans of an update, without what its closure computes.

The last of them, in which the parameters change, is the one that counts.
"""

from collections.abc import Callable

from training_profiler.instrument.codes import uncounted
from training_profiler.instrument.tape import Tape


class Update:
    """An optimizer's update under way; where it computes the loss itself, that time is not its own."""

    __slots__ = (
        "_clearing_begins",
        "_clearing_ends",
        "_code",
        "_pieces_code",
        "_tape",
        "had_closure",
        "is_in_closure",
        "open_code",
        "span_begins",
        "span_ends",
    )

    def __init__(self, tape: Tape, code: int) -> None:
        self.open_code = 0  # of the span that is open; 0 for none, or while the loss is computed
        self.is_in_closure = False
        self._tape = tape
        self._code = code
        self._pieces_code = uncounted(code)
        self.had_closure = False
        self.make_writers()

    def make_writers(self) -> None:
        """Make what writes the events of every update; anew where another clock tells their times."""
        code, writer = self._code, self._tape.writer
        self.span_begins, self.span_ends = writer(code), writer(-code)
        code = self._pieces_code
        self._clearing_begins, self._clearing_ends = writer(code), writer(-code)

    def clearing_begins(self) -> Callable[[], None]:
        """Note that gradients begin to be cleared; return what notes that they are."""
        events = self._tape.events
        if events and events[-1] == -self._code:  # right after the update, and one span with it
            del events[-2:]
            return self.span_ends
        self._clearing_begins()
        return self._clearing_ends

    def closure_begins(self) -> None:
        """Note that the loss begins to be computed."""
        if self.open_code == self._code:
            self.open_code = self._pieces_code
            self._tape.recode_last(self._code, self._pieces_code)
        self._leave()
        self.is_in_closure = self.had_closure = True

    def closure_ends(self) -> None:
        """Note that the gradients are there, and the update goes on."""
        self.is_in_closure = False
        self.open_code = self._pieces_code
        self._tape.note(self.open_code)

    def ends(self) -> int:
        """Note that the update has ended, or raised some time ago; return the time in ns."""
        self.is_in_closure = False
        if self.had_closure:
            self.had_closure = False
            if self.open_code:
                self._tape.recode_last(self.open_code, self._code)
            else:
                self._tape.note(self._code)
            self.open_code = self._code
        return self._leave()

    def _leave(self) -> int:
        now_ns = self._tape.clock()
        if self.open_code:
            self._tape.events.extend((now_ns, -self.open_code))
            self.open_code = 0
        return now_ns
