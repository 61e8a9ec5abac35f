"""How large the inputs of forward passes are, in some steps of the training and in evaluations beside it."""

import math
from collections.abc import Callable, Iterator
from typing import Any, Final

from training_profiler.instrumentation.loop_detection.loader_passes import LoaderPass
from training_profiler.instrumentation.loop_detection.modules import parameters_within
from training_profiler.model.program import ActingFacts, RowFacts
from training_profiler.recording.event_codes import Fields, field

EACH_OF_FIRST: Final = 64  # updates before each of which the inputs are looked at, for a short training
EVERY: Final = 16  # updates later, at least, and a power of two
APART_NS: Final = 50_000_000  # from one such update to the next: looking takes some 40 us in a short step
MOST_APART: Final = 1024  # updates
MOST: Final = 4096  # kept until the next ``pop``
FEW: Final = 4  # rows
TRAINING_CALLS: Final = 64  # forward passes of the training that are looked at
CALLS: Final = 4096  # of evaluations
MOST_SHAPES: Final = 64
MOST_INSIDE: Final = 8  # tensors of one list or dictionary
IMAGE: Final = 4  # dimensions of a batch of images


def shape_of(value: Any) -> tuple[int, ...]:
    """Return the shape of a tensor; () for anything else, and where it is not known in numbers.

    A nested tensor raises where it has no shape, and a compiler that traces has symbols.
    """
    try:
        shape = value.shape
    except Exception:
        return ()
    return shape if isinstance(shape, tuple) and all(type(length) is int for length in shape) else ()


def elements_of(shape: tuple[int, ...]) -> int:
    """Return how many numbers a tensor of this shape has; 0 for (), which may be no tensor at all."""
    return math.prod(shape) if shape else 0


def _inside(values: Any) -> Iterator[Any]:
    """Yield the values, and those of lists and dictionaries in place of these."""
    for value in values:
        if isinstance(value, (list, tuple)):
            yield from _inside(value[:MOST_INSIDE])
        elif isinstance(value, dict):
            yield from _inside(list(value.values())[:MOST_INSIDE])
        else:
            yield value


def largest_shape(values: Any) -> tuple[int, ...]:
    """Return the shape of the largest tensor, also of those in a list or a dictionary; () without any."""
    return max(filter(elements_of, map(shape_of, _inside(values))), key=elements_of, default=())


def _are_ids(values: Any, shape: tuple[int, ...]) -> bool:
    """Return whether a tensor of this shape has two dimensions and integers of torch's size for ids."""
    is_matrix = len(shape) == 2
    return is_matrix and any(
        shape_of(value) == shape and str(value.dtype) in ("torch.int64", "torch.int32") for value in _inside(values)
    )


def has_channels_last(values: Any) -> bool:
    """Return whether an image among ``values`` has its channels last in memory: strides of NHWC, but not of NCHW."""
    return any(len(shape_of(value)) == IMAGE and _is_channels_last(value) for value in _inside(values))


def _is_channels_last(image: Any) -> bool:
    try:
        _, channels, _, width = image.shape
        strides = image.stride()
    except Exception:  # a tensor without strides, such as a sparse one
        return False
    return channels > 1 and width > 1 and bool(strides[1] == 1 and strides[3] == channels)


class _Sums:
    def __init__(self) -> None:
        self.calls = self.rows = self.elements = 0

    def add(self, shape: tuple[int, ...]) -> None:
        self.calls += 1
        self.rows += shape[0]
        self.elements += elements_of(shape)


class EvaluatedRows:
    """Sums over the first forward passes: the rows of the largest input of each, and what a row has of elements."""

    def __init__(self) -> None:
        self.calls = 0  # of evaluations
        self.shapes: list[tuple[int, tuple[int, ...]]] = []  # with the updates before which they were seen
        self._apart = 1  # updates
        self._trained = _Sums()
        self._few, self._acting = _Sums(), _Sums()
        self._most_acting = 0
        self._batch = self._few_batch = (0, 0)  # that was fetched last before a call, and before one with few rows
        self._batches, self._few_batches, self._after_one, self._most = 0, 0, 0, 0

    def add_training(self, shape: tuple[int, ...], update: int) -> None:
        """Add a forward pass of the training with the shape of its largest input."""
        if not self.shapes or update - self.shapes[-1][0] >= self._apart:
            self.shapes.append((update, shape))
            if len(self.shapes) > MOST_SHAPES:
                self.shapes, self._apart = self.shapes[::2], 2 * self._apart
        if self._trained.calls < TRAINING_CALLS:
            self._trained.add(shape)

    def add_evaluation(self, module: Any, inputs: tuple[Any, ...], loader_pass: LoaderPass | None) -> bool:
        """Add a call without gradients, if it evaluates the model that is trained; ``loader_pass`` is the latest.

        One that a fetched batch does not precede may be of a model that acts. Return whether others may still be added.
        """
        may_act = loader_pass is None and self._acting.calls < CALLS
        if may_act and (acting := largest_shape(inputs)):
            self._acting.add(acting if len(acting) > 1 else (1, *acting))
            self._most_acting = max(self._most_acting, acting[0] if len(acting) > 1 else 1)
        if module.training or self.calls >= CALLS:
            return may_act
        if not getattr(next(parameters_within(module), None), "requires_grad", False):  # as of a frozen teacher
            return may_act
        self.calls += 1
        batch = (id(loader_pass), 0 if loader_pass is None else loader_pass.fetches)
        if batch != self._batch:
            self._batch = batch
            self._batches += 1
            self._after_one = 0
        shape = largest_shape(inputs)
        if shape and shape[0] <= FEW:
            self._few.add(shape)
            self._after_one += 1
            self._most = max(self._most, self._after_one)
            if batch != self._few_batch:
                self._few_batch = batch
                self._few_batches += 1
        return True

    def acting(self) -> ActingFacts | None:
        """Return the rows of calls while a model acts; None where they differ, and without calls or training."""
        acting, trained = self._acting, self._trained
        if not acting.rows or not trained.rows or self._most_acting * acting.calls > 2 * acting.rows:
            return None
        return ActingFacts(acting.rows / acting.calls, trained.rows / trained.calls)

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


class InputSizes(Fields):
    """The elements of the largest input of each forward pass that is looked at."""

    is_due: bool = field(0)
    rows: EvaluatedRows
    next_update: int = field(1)  # after which ``update_ends`` has something to do

    def __init__(self) -> None:
        self.is_due = True
        self.next_update = 0
        self.rows = EvaluatedRows()
        self.has_token_ids = False  # the model looks up ids, by its modules; known within the first update
        self._tokens = self._token_updates = self._tokens_until = (
            0  # of updates that were looked at, since ``pop_tokens``
        )
        self._tokens_an_update = 0.0
        self._open_tokens = 0, 0  # the update under way, and its tokens so far
        self.are_channels_last = False  # images among the first inputs, in NHWC order
        self._look: Callable[[Any], None] | None = None
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
            before, self._looked_at = self._looked_at, (updates, now_ns)
            if before is not None and updates > before[0]:
                step_ns = (now_ns - before[1]) / (updates - before[0])
                self._every = EVERY
                while self._every < MOST_APART and self._every * step_ns < APART_NS:
                    self._every *= 2
            self.next_update = updates + 1
        else:
            self.next_update = min((updates // self._every + 1) * self._every, 1 << updates.bit_length())

    def add(self, inputs: tuple[Any, ...], update: int) -> None:
        """Add a forward pass with these inputs before the update of this number, if any of them is a tensor."""
        if self._look is not None:
            self._look(inputs)
        if update == 1 and not self.are_channels_last:
            self.are_channels_last = has_channels_last(inputs)
        shape = shape_of(inputs[0]) if len(inputs) == 1 else ()
        if not elements_of(shape):
            shape = largest_shape(inputs)
        if shape:
            self.rows.add_training(shape, update)
            if self.has_token_ids and update > 1 and _are_ids(inputs, shape):
                self._add_tokens(update, elements_of(shape))
            if len(self._seen) < MOST:
                self._seen.append((update, elements_of(shape)))

    def show_to(self, look: Callable[[Any], None]) -> None:
        """Show the inputs that are looked at from now on to ``look``, which must not raise."""
        self._look = look

    def count_tokens(self) -> None:
        """Count ids among the inputs from the next update on."""
        self.has_token_ids = True

    def _add_tokens(self, update: int, tokens: int) -> None:
        of_update, before = self._open_tokens
        if update != of_update and before:
            self._tokens, self._token_updates, before = self._tokens + before, self._token_updates + 1, 0
        self._open_tokens = update, before + tokens

    def pop_tokens(self, updates: int) -> int | None:
        """Return the ids in the inputs of all updates since the last call, by those looked at; None where none are ids.

        Args:
            updates: how many there have been so far.
        """
        if self._token_updates:
            self._tokens_an_update = self._tokens / self._token_updates
            self._tokens = self._token_updates = 0
        if not self._tokens_an_update:
            return None
        since, self._tokens_until = updates - self._tokens_until, updates
        return round(self._tokens_an_update * since)

    def pop(self) -> list[tuple[int, int]]:
        """Return (step, elements) of those since the last call."""
        return pop_all(self._seen)


def pop_all(values: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return what is in a list that another thread may append to, and remove it."""
    found = values[:]
    del values[: len(found)]
    return found
