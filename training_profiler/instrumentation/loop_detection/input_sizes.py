"""How large the inputs of forward passes are, looked at in some steps only."""

from typing import Any, Final

from training_profiler.instrumentation.loop_detection.evaluated_rows import EvaluatedRows

EACH_OF_FIRST: Final = 64  # updates before each of which the inputs are looked at, for a short training
EVERY: Final = 16  # updates later
MOST: Final = 4096  # kept until the next ``pop``


class InputSizes:
    """The elements of the largest input of each forward pass that is looked at."""

    def __init__(self) -> None:
        self.is_due = True
        self.next_update = 0  # after which something changes
        self.rows: Final = EvaluatedRows()
        self._update = 1
        self._seen: list[tuple[int, int]] = []

    def update_ends(self, updates: int) -> None:
        """Handle the end of an update, with the number of updates so far."""
        self._update = updates + 1
        self.is_due = updates < EACH_OF_FIRST or not updates % EVERY
        self.next_update = updates + 1 if self.is_due else (updates // EVERY + 1) * EVERY

    def add(self, inputs: tuple[Any, ...]) -> None:
        """Add a forward pass with these inputs, if any of them is a tensor."""
        self.rows.add_training(inputs)
        sizes = [size for size in map(_elements, inputs) if size]
        if sizes and len(self._seen) < MOST:
            self._seen.append((self._update, max(sizes)))

    def pop(self) -> list[tuple[int, int]]:
        """Return (step, elements) of those since the last call."""
        count = len(self._seen)
        seen = self._seen[:count]
        del self._seen[:count]
        return seen


def _elements(value: Any) -> int:
    """Return the number of elements of a tensor, also of one in a list or a dictionary; 0 for anything else."""
    if isinstance(value, (list, tuple)):
        return max(map(_elements, value[:8]), default=0)
    shape = getattr(value, "shape", None)
    if shape is None or not isinstance(shape, tuple):
        return 0
    elements = 1
    for length in shape:
        if not isinstance(length, int):  # symbolic, while a compiler traces
            return 0
        elements *= length
    return elements
