"""How many samples an evaluation gives a model at once, beside the training."""

from typing import Any, Final

from training_profiler.instrumentation.loop_detection.loader_passes import LoaderPass
from training_profiler.instrumentation.loop_detection.modules import parameters_within
from training_profiler.instrumentation.loop_detection.shapes import elements_of, largest_shape
from training_profiler.snapshot.program import RowFacts

FEW: Final = 4  # rows
TRAINING_CALLS: Final = 64  # forward passes of the training that are looked at
CALLS: Final = 4096  # of evaluations


class EvaluatedRows:
    """Sums over the first forward passes: the rows of the largest input of each, and what a row has of elements."""

    calls: int  # of evaluations

    def __init__(self) -> None:
        self.calls = 0
        self._trained = _Sums()
        self._few = _Sums()
        self._batch = self._few_batch = (0, 0)  # that was fetched last before a call, and before one with few rows
        self._batches, self._few_batches, self._after_one, self._most = 0, 0, 0, 0

    def add_training(self, shape: tuple[int, ...], elements: int) -> None:
        """Add a forward pass of the training with the shape of its largest input, and the elements of that."""
        trained = self._trained
        if trained.calls < TRAINING_CALLS:
            trained.add(shape, elements)

    def add_evaluation(self, module: Any, inputs: tuple[Any, ...], loader_pass: LoaderPass | None) -> None:
        """Add a call without gradients, if it evaluates the model that is trained; ``loader_pass`` is the latest."""
        if module.training or self.calls >= CALLS or not _is_trained(module):
            return
        self.calls += 1
        batch = (id(loader_pass), 0 if loader_pass is None else loader_pass.fetches)
        if batch != self._batch:
            self._batch = batch
            self._batches += 1
            self._after_one = 0
        shape = largest_shape(inputs)
        if shape and shape[0] <= FEW:
            self._few.add(shape, elements_of(shape))
            self._after_one += 1
            self._most = max(self._most, self._after_one)
            if batch != self._few_batch:
                self._few_batch = batch
                self._few_batches += 1

    def facts(self) -> RowFacts | None:
        """Return the sums so far; None without forward passes of both the training and an evaluation."""
        trained, few = self._trained, self._few
        if not trained.rows or not few.rows:
            return None
        return RowFacts(
            self.calls,
            few.calls,
            few.rows / few.calls,
            few.elements / few.rows,
            self._batches,
            self._few_batches,
            self._most,
            trained.rows / trained.calls,
            trained.elements / trained.rows,
        )


def _is_trained(module: Any) -> bool:
    """Return whether the first parameter of ``module`` is trained, unlike those of a frozen teacher."""
    return getattr(next(parameters_within(module), None), "requires_grad", False)


class _Sums:
    __slots__ = ("calls", "elements", "rows")

    def __init__(self) -> None:
        self.calls = self.rows = self.elements = 0

    def add(self, shape: tuple[int, ...], elements: int) -> None:
        self.calls += 1
        self.rows += shape[0]
        self.elements += elements
