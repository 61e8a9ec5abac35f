"""How large the inputs of forward passes are, looked at in some steps only."""

from typing import Any, Final

from training_profiler.instrumentation.loop_detection.evaluated_rows import EvaluatedRows
from training_profiler.instrumentation.loop_detection.shapes import (
    elements_of,
    has_channels_last,
    largest_shape,
    shape_of,
)
from training_profiler.recording.fields import Fields, field

EACH_OF_FIRST: Final = 64  # updates before each of which the inputs are looked at, for a short training
EVERY: Final = 16  # updates later, at least, and a power of two
APART_NS: Final = 50_000_000  # from one such update to the next: looking takes some 40 us in a short step
MOST_APART: Final = 1024  # updates
MOST: Final = 4096  # kept until the next ``pop``


class InputSizes(Fields):
    """The elements of the largest input of each forward pass that is looked at."""

    is_due: bool = field(0)
    rows: EvaluatedRows
    next_update: int = field(1)  # after which ``update_ends`` has something to do

    def __init__(self) -> None:
        self.is_due = True
        self.next_update = 0
        self.rows = EvaluatedRows()
        self.are_channels_last = False  # images among the first inputs, in NHWC order
        self._every = EVERY
        self._looked_at: tuple[int, int] | None = None  # number of updates when they were due last, and when
        self._seen: list[tuple[int, int]] = []

    def update_ends(self, updates: int, now_ns: int) -> None:
        """Handle the end of an update, with the number of updates so far, if that is ``next_update`` or more.

        The caller wants to be asked at each power of two, too.
        """
        self.is_due = updates < EACH_OF_FIRST or not updates % self._every
        if updates < EACH_OF_FIRST:
            self.next_update = min(1 << updates.bit_length(), EACH_OF_FIRST)
        elif self.is_due:
            self._choose_pace(updates, now_ns)
            self.next_update = updates + 1
        else:
            self.next_update = min((updates // self._every + 1) * self._every, 1 << updates.bit_length())

    def _choose_pace(self, updates: int, now_ns: int) -> None:
        before, self._looked_at = self._looked_at, (updates, now_ns)
        if before is not None and updates > before[0]:
            step_ns = (now_ns - before[1]) / (updates - before[0])
            self._every = EVERY
            while self._every < MOST_APART and self._every * step_ns < APART_NS:
                self._every *= 2

    def add(self, inputs: tuple[Any, ...], update: int) -> None:
        """Add a forward pass with these inputs before the update of this number, if any of them is a tensor."""
        if update == 1 and not self.are_channels_last:
            self.are_channels_last = has_channels_last(inputs)
        shape = shape_of(inputs[0]) if len(inputs) == 1 else ()
        elements = elements_of(shape)
        if not elements:
            shape = largest_shape(inputs)
            elements = elements_of(shape)
        if shape:
            self.rows.add_training(shape, elements)
            if len(self._seen) < MOST:
                self._seen.append((update, elements))

    def pop(self) -> list[tuple[int, int]]:
        """Return (step, elements) of those since the last call."""
        count = len(self._seen)
        seen = self._seen[:count]
        del self._seen[:count]
        return seen
