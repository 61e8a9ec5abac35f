"""How large the inputs of forward passes are, looked at in some steps only."""

from typing import Any, Final

from training_profiler.instrumentation.loop_detection.evaluated_rows import EvaluatedRows
from training_profiler.instrumentation.loop_detection.shapes import elements_of, has_channels_last, largest_shape

EACH_OF_FIRST: Final = 64  # updates before each of which the inputs are looked at, for a short training
EVERY: Final = 16  # updates later
MOST: Final = 4096  # kept until the next ``pop``


class InputSizes:
    """The elements of the largest input of each forward pass that is looked at."""

    def __init__(self) -> None:
        self.is_due = True
        self.next_update = 0  # after which something changes
        self.rows: Final = EvaluatedRows()
        self.are_channels_last = False  # images among the first inputs, in NHWC order
        self._update = 1
        self._seen: list[tuple[int, int]] = []

    def update_ends(self, updates: int) -> None:
        """Handle the end of an update, with the number of updates so far."""
        self._update = updates + 1
        self.is_due = updates < EACH_OF_FIRST or not updates % EVERY
        self.next_update = updates + 1 if self.is_due else (updates // EVERY + 1) * EVERY

    def add(self, inputs: tuple[Any, ...]) -> None:
        """Add a forward pass with these inputs, if any of them is a tensor."""
        if self._update == 1 and not self.are_channels_last:
            self.are_channels_last = has_channels_last(inputs)
        shape = largest_shape(inputs)
        self.rows.add_training(shape)
        if shape and len(self._seen) < MOST:
            self._seen.append((self._update, elements_of(shape)))

    def pop(self) -> list[tuple[int, int]]:
        """Return (step, elements) of those since the last call."""
        count = len(self._seen)
        seen = self._seen[:count]
        del self._seen[:count]
        return seen
