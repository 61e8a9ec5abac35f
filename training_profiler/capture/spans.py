"""The training thread's sections of a window, to be written into its trace."""

import threading
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple, Protocol

MOST_SPANS: Final = 200_000  # of a window; what follows is left out of the trace


class Span(NamedTuple):
    """One execution of something, by the recorder's clock."""

    name: str
    begin_ns: int
    end_ns: int


class Disturbed(Protocol):
    """What is told which steps, counted from 1, a window slows."""

    def begin(self, step: int) -> None:
        """Note that steps are slowed from ``step`` on."""

    def end(self, last: int) -> None:
        """Note that ``last`` is the last one."""


class SpanSource(Protocol):
    """What tells of the training thread's spans."""

    on_every_span: Callable[[Any, Any, Any, int], None] | None

    @property
    def disturbed(self) -> "Disturbed":
        """What is told which steps a window slows."""


class SpanBook:
    """Takes the spans that lie in a window as they are summed up, until all up to its end are there."""

    def __init__(self, names: Mapping[int, str], begin_ns: int) -> None:
        self.begin_ns = begin_ns
        self.end_ns: int | None = None  # of the window, once that is over
        self.is_complete = threading.Event()
        self.left_out = 0
        self._names = names
        self._rows: list[tuple[int, int, int]] = []
        self._until_ns = begin_ns

    def add(self, ids: Any, begins_ns: Any, ends_ns: Any, until_ns: int) -> None:
        """Take spans that have ended, as numpy has them; what is later than ``until_ns`` comes with a later call."""
        is_inside = ends_ns > self.begin_ns
        rows = list(zip(*(array[is_inside].tolist() for array in (ids, begins_ns, ends_ns)), strict=True))
        room = MOST_SPANS - len(self._rows)
        self._rows += rows[:room]
        self.left_out += len(rows[room:])
        self._until_ns = until_ns
        self._look()

    def ends(self, at_ns: int) -> None:
        """Note that the window is over."""
        self.end_ns = at_ns
        self._look()

    def _look(self) -> None:
        if self.end_ns is not None and self._until_ns >= self.end_ns:
            self.is_complete.set()

    def spans(self) -> list[Span]:
        """Return those that lie in the window, cut where they reach over its ends."""
        end_ns = self._until_ns if self.end_ns is None else self.end_ns
        return [
            Span(self._names.get(id, "?"), max(begin, self.begin_ns), min(end, end_ns))
            for id, begin, end in list(self._rows)
            if begin < end_ns
        ]
