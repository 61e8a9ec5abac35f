"""Finds positions of sequences, and pixels of images, that are computed though they are padding.

Only tensors on the host are read. A real token may have the value that ends most rows, so the value alone says nothing:
a mask, labels without a loss, lengths, or the ``padding_idx`` of an embedding has to say that it is padding. Images say
it themselves where each ends with other numbers of rows and columns of one value, and none begins with that value.
"""

import contextlib
import sys
from collections.abc import Container, Iterable, Iterator
from itertools import islice
from statistics import median
from time import perf_counter_ns
from types import SimpleNamespace
from typing import Any, Final, NamedTuple

from training_profiler.inspections.inspection import (
    Following,
    Inspection,
    SeenCall,
    UserProgram,
    is_watched,
    tensors_within,
    why_not_counted,
)
from training_profiler.instrumentation.loop_detection.input_sizes import elements_of, shape_of
from training_profiler.instrumentation.loop_detection.modules import modules_within, plain_classes
from training_profiler.model.program import IMAGE_ENDS, PaddingFacts

FOLLOWED: Final = 3  # calls whose operations are looked at
MOST_ELEMENTS: Final = 1_000_000  # of a tensor that is read
MOST_TENSORS: Final = 8  # of a batch
MOST_LENGTHS: Final = 8192  # that are kept
IGNORED: Final = -100  # a label without loss
MASKED: Final = -1e4  # and less: scores that do not count
# In eval mode they leave their faster kernels where they find a mode of torch.
WITH_FAST_PATH: Final = ("MultiheadAttention", "TransformerEncoder", "TransformerEncoderLayer")
Slot = tuple[Any, int, bool]  # data type, dimensions, and whether sequences are columns
Shape = tuple[int, ...]


class _Rows(NamedTuple):
    """A tensor in rows that are sequences, and how many positions of each have the value that ends most of them."""

    shape: Shape  # rows, positions
    value: float
    is_left: bool  # it begins them
    runs: Any
    slot: Slot
    of_shape: Shape  # of the tensor


class _Mask(NamedTuple):
    """How many positions of each row do not count, from its end or from its begin on."""

    shape: Shape
    is_left: bool
    runs: Any
    what: str


class _Batch(NamedTuple):
    """What was read of a batch, and none of its tensors."""

    tensors: list[list[_Rows]]  # of each, the ways in which it may have rows
    masks: list[_Mask]
    lengths: list[Any]  # integers, one a row
    images: list[_Rows]


class _Operations:
    """What the operations of a call say about padding, and how long they take: by the shape of what they return."""

    def __init__(self) -> None:
        self.masks: list[_Mask] = []
        self.lengths: list[Any] = []
        self.embedded: set[tuple[Shape, float]] = set()  # shapes of ids, and padding_idx
        self.spent: list[tuple[Shape, int]] = []  # ns on the CPU; else numbers of the result
        self._flat: set[Shape] = set()  # of results in which each sample has all that it had before in one row
        self._has_flat_pixels = False

    def add(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any, ns: int) -> None:
        """Add an operation that has ended."""
        made = result[0] if isinstance(result, tuple) and result else result
        shape = shape_of(made)
        if shape:
            self.spent.append((shape, ns if made.is_cpu else elements_of(shape)))
        name, mask = getattr(function, "__name__", ""), None
        if name in ("flatten", "reshape", "view") and len(shape) == 2 and made.dim() < args[0].dim():
            self._flat.add(shape)
            self._has_flat_pixels |= _is_of_pixels(shape_of(args[0]))
        elif name == "embedding":
            padding = kwargs.get("padding_idx", args[2] if len(args) > 2 else None)
            self.embedded |= set() if padding is None else {(shape_of(args[0]), padding)}
        elif name == "_pack_padded_sequence":
            self.lengths.append(args[1].sort().values)
        elif name == "multi_head_attention_forward":
            mask = kwargs.get("key_padding_mask")
        elif name == "scaled_dot_product_attention":
            mask = kwargs.get("attn_mask", args[3] if len(args) > 3 else None)
        elif name in ("masked_fill", "masked_fill_") and len(args) > 2 and float(args[2]) <= MASKED:
            mask = args[1]
        if mask is not None and mask.is_cpu:
            self.masks += _masks(_of_keys(mask), "the attention mask")

    def part_of_pixels(self) -> float:
        """Return the part of operations whose results are images, of any size; 0 where a layer needs that size."""
        whole = sum(spent for _, spent in self.spent)
        of_images = sum(spent for made, spent in self.spent if _is_of_pixels(made))
        return of_images / whole if whole and not self._has_flat_pixels else 0.0

    def part_of(self, shapes: Iterable[Shape]) -> float:
        """Return the part of operations whose results have all positions of rows of these shapes.

        It is 0 where a layer takes whole rows at once: it has a weight for each position, and needs as many of them.
        """
        if any(made[0] == rows and made[1] > made[1] % length == 0 for made in self._flat for rows, length in shapes):
            return 0.0
        whole = sum(spent for _, spent in self.spent)
        scaling = sum(spent for made, spent in self.spent if any(_has_positions(made, *shape) for shape in shapes))
        return scaling / whole if whole else 0.0


class Padding(Inspection):
    """Reads the batches of some steps, and in few of them the operations of the model."""

    def __init__(self, program: UserProgram) -> None:
        self._program = program
        self._fetched = _Batch([], [], [], [])
        self._calls = self._followed = 0
        self._values: dict[Slot, float] = {}  # that are padding
        self._batches: list[dict[Shape, list[int]]] = []  # padding of each row, by the shape in rows
        self._lengths = 0  # in them
        self._parts: list[float] = []  # of operations, at all positions
        self._what = self._place = self._library = ""
        self._have_borders = False  # images

    @property
    def _is_worth_reading(self) -> bool:
        return bool(self._values) or self._calls < 8  # else it has no padding, as far as it is said

    def fetched(self, iterator: Any, batch: Any) -> None:
        """Read a batch of a loader."""
        if self._is_worth_reading and not is_watched():
            self._fetched = self._read(batch)
            self._place = self._place or self._place_of(getattr(iterator, "_collate_fn", None))  # private: may be gone

    def _place_of(self, collate: Any) -> str:
        """Return the user's function that puts samples together: "data.py:20 collate"; "" for a library's."""
        function = vars(type(collate)).get("__call__") if not hasattr(collate, "__code__") else collate
        code: Any = getattr(getattr(collate, "__func__", function), "__code__", None)
        self._library = str(getattr(function, "__module__", "")).partition(".")[0]
        frame: Any = SimpleNamespace(f_code=code, f_lasti=0, f_back=None)
        place = self._program.place_of(frame) if code is not None else ""
        return f"{place} {code.co_qualname}" if place else ""

    def follow(self, seen: SeenCall) -> Following:
        """Count the padding of a call's inputs, as far as something says what it is; look into the first calls."""
        if seen.is_bare or seen.is_watched or not seen.has_grad or not self._is_worth_reading:
            return
        batch = self._batch_of(seen.inputs)
        self._calls += 1
        if not batch.tensors and not batch.images:
            return
        operations, is_followed = _Operations(), self._followed < FOLLOWED and self._may_be_followed(seen.module)
        yield
        self._followed += is_followed
        with _following(operations) if is_followed else contextlib.nullcontext():
            yield
        batch.masks.extend(operations.masks)
        batch.lengths.extend(operations.lengths)
        shapes = self._count(batch, operations.embedded)
        if shapes and is_followed:
            self._parts.append(operations.part_of_pixels() if self._what == IMAGE_ENDS else operations.part_of(shapes))

    def _batch_of(self, inputs: Any) -> _Batch:
        """Read the inputs, and for those on a device the batch on the host that had their shapes."""
        given, fetched, self._fetched = self._read(inputs), self._fetched, _Batch([], [], [], [])
        shapes = {shape_of(tensor) for tensor in tensors_within(inputs)}
        shapes -= {rows.of_shape for tensor in given.tensors for rows in tensor}
        on_device = [tensor for tensor in fetched.tensors if tensor[0].of_shape in shapes]
        masks, lengths = given.masks + fetched.masks, given.lengths + fetched.lengths
        images = given.images + [each for each in fetched.images if each.of_shape in shapes]
        return _Batch(given.tensors + on_device, masks, lengths, [] if self._have_borders else images)

    def _may_be_followed(self, module: Any) -> bool:
        if self._program.may_be_compiled(module) or why_not_counted(sys.modules["torch"], module) is not None:
            return False
        return all(each.training for each in modules_within(module) if type(each).__name__ in WITH_FAST_PATH)

    def look(self, inputs: Any) -> None:
        """Count the padding in the inputs of a later call."""
        with contextlib.suppress(Exception):
            if not is_watched():
                self._count(self._batch_of(inputs))

    def _count(self, batch: _Batch, embedded: Container[tuple[Shape, float]] = ()) -> list[Shape]:
        """Add the padding of a batch; return the shapes of tensors with rows that have some."""
        counted: dict[Shape, list[int]] = {}
        for tensor in batch.tensors:
            known = [(rows, runs) for rows in tensor if (runs := self._padding_of(rows, batch, embedded)) is not None]
            if known:  # either way; of tensors with one shape, such as ids and their places, that with most padding
                rows, runs = max(known, key=lambda each: int(each[1].sum()))
                self._values[rows.slot] = rows.value
                counted[rows.shape] = max(runs.tolist(), counted.get(rows.shape, []), key=sum)
        for rows in () if counted else batch.images:
            self._values[rows.slot], self._what = rows.value, self._what or IMAGE_ENDS
            counted[rows.shape] = rows.runs.tolist()
        self._lengths += sum(map(len, counted.values()))
        if counted and self._lengths <= MOST_LENGTHS:
            self._batches.append(counted)
        return list(counted)

    def _padding_of(self, rows: _Rows, batch: _Batch, embedded: Container[tuple[Shape, float]]) -> Any:
        """Return how many positions of each row are padding; None where nothing says so."""
        for mask in batch.masks:
            if (mask.shape, mask.is_left) != (rows.shape, rows.is_left):
                continue
            # Where one token ends a text and fills its row, its first one counts; labels of the next token have one
            # position less. Masks of something else, such as of a prompt, have tokens of many values.
            runs = rows.runs.minimum(mask.runs)
            if bool((runs >= mask.runs - 1).all()) and int(runs.sum()) >= 0.8 * int(mask.runs.sum()):
                self._what = self._what or mask.what
                return runs
        kept = (rows.shape[1] - rows.runs).sort().values
        # Integers, in order. A real token at the end of a row may have the value of padding.
        same = [int((each == kept).sum()) for each in batch.lengths if each.shape == kept.shape]
        if max(same, default=-1) >= 0.9 * len(kept):
            self._what = self._what or "the lengths"
            return rows.runs
        if (rows.of_shape, rows.value) in embedded:
            self._what = self._what or f"padding_idx={rows.value:g}"
            return rows.runs
        return rows.runs if rows.slot in self._values else None

    def _read(self, values: Any) -> _Batch:
        batch = _Batch([], [], [], [])
        for tensor in islice(tensors_within(values), MOST_TENSORS):
            with contextlib.suppress(Exception):  # such as a nested or a sparse one
                shape = shape_of(tensor)
                if type(tensor) in plain_classes(sys.modules["torch"]) and tensor.is_cpu and min(shape) > 0:
                    self._read_tensor(tensor.detach(), shape, batch)
        return batch

    def _read_tensor(self, tensor: Any, shape: Shape, batch: _Batch) -> None:
        is_float = tensor.is_floating_point()
        if elements_of(shape) > MOST_ELEMENTS and not _is_of_pixels(shape):
            return
        if _is_of_pixels(shape):
            self._read_images(tensor, shape, batch)
        elif len(shape) == 1 and not is_float:
            batch.lengths.append(tensor.sort().values)
        elif len(shape) == 2 and bool(((tensor == 0) | (tensor == 1)).all()):
            batch.masks.extend(_masks(tensor, "the mask"))
        elif len(shape) == 2 and bool((ignored := tensor == IGNORED).any()):
            batch.masks.extend(_masks(ignored, f"labels of {IGNORED}", are_labels=True))
        elif len(shape) == 3 or (len(shape) == 2 and not is_float):
            positions = tensor[..., None] if len(shape) == 2 else tensor[..., :4]  # features are enough
            batch.tensors.append([_rows(each, shape, self._values) for each in (positions, positions.transpose(0, 1))])

    def _read_images(self, images: Any, shape: Shape, batch: _Batch) -> None:
        """Read where images end: by the larger side of each, as a smaller batch keeps the form of this one."""
        value, stride = images[:, 0, -1, -1].mode().values.item(), max(1, elements_of(shape) // MOST_ELEMENTS)
        rows, columns = images[:, 0, :, ::stride] == value, images[:, 0, ::stride] == value
        sides = rows.all(2), columns.all(1)  # which rows and columns have that value
        if any(bool(side[:, 0].any()) for side in sides):  # as the background of an object
            self._have_borders = True
        ends = [_runs(side, False) for side in sides]
        if self._have_borders or not any(len(each.unique()) > 2 for each in ends):
            return
        kept = (1 - ends[0] / shape[2]).maximum(1 - ends[1] / shape[3]) ** 2
        runs = ((1 - kept) * shape[2] * shape[3]).int()
        slot = images.dtype, len(shape), False
        batch.images.append(_Rows((shape[0], shape[2] * shape[3]), value, False, runs, slot, shape))

    def facts(self, steps: int) -> PaddingFacts | None:
        """Return what is padding in the batches so far; None where nothing says what is."""
        if not self._batches or not self._parts or (self._have_borders and self._what == IMAGE_ENDS):
            return None
        rows = [(count, length, runs) for batch in self._batches for (count, length), runs in batch.items()]
        positions = [sum(count * length for count, length in batch) for batch in self._batches]
        padding = [sum(map(sum, batch.values())) for batch in self._batches]
        # Rows of similar length put together: each has as many positions as the longest of so many neighbours.
        lengths = sorted((length - run for _, length, runs in rows for run in runs), reverse=True)
        count, whole = max(1, round(len(lengths) / len(rows))), sum(positions)
        grouped = whole - sum(lengths[at] * len(lengths[at : at + count]) for at in range(0, len(lengths), count))
        to_longest = sum(count * min(runs) for count, _, runs in rows)
        return PaddingFacts(
            len(rows),
            sum(padding) / whole,
            max(part / of for part, of in zip(padding, positions, strict=True)),
            to_longest / whole,
            max(to_longest, grouped) / whole,
            median(self._parts),
            self._what,
            self._place,
            "" if self._place else self._library,
        )


@contextlib.contextmanager
def _following(operations: _Operations) -> Iterator[None]:
    """Have a mode of torch that runs each operation unchanged and adds it to ``operations``."""
    torch = sys.modules["torch"]

    def follow(self: Any, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs, began_ns = kwargs or {}, perf_counter_ns()
        result = function(*args, **kwargs)
        with contextlib.suppress(Exception):
            operations.add(function, args, kwargs, result, perf_counter_ns() - began_ns)
        return result

    mode = type("Following", (torch.overrides.TorchFunctionMode,), {"__torch_function__": follow})()
    mode.__enter__()
    try:
        yield
    finally:  # the call of another thread may be left here, or the program may have entered another mode
        count = torch._C._len_torch_function_stack()
        if count and torch._C._get_function_stack_at(count - 1) is mode:
            mode.__exit__(None, None, None)


def _rows(positions: Any, of_shape: Shape, values: dict[Slot, float]) -> _Rows:
    """Return rows of positions, each with some of its features, with the value that is known, or that ends most."""
    shape, is_column = tuple(positions.shape[:2]), tuple(positions.shape[:2]) != of_shape[:2]
    slot = (positions.dtype, len(of_shape), is_column)
    sides = []
    for is_left in (False, True):
        edge = positions[:, 0 if is_left else -1, 0]
        value = values.get(slot, edge.mode().values.item())
        sides.append((value, is_left, _runs((positions == value).all(2), is_left)))
    value, is_left, runs = max(sides, key=lambda side: int(side[2].sum()))
    return _Rows(shape, value, is_left, runs, slot, of_shape)


def _runs(marked: Any, is_left: bool) -> Any:
    """Return how many positions of each row are marked, from its end or from its begin on."""
    return (marked if is_left else marked.flip(1)).int().cumprod(1).sum(1)


def _masks(mask: Any, what: str, *, are_labels: bool = False) -> list[_Mask]:
    """Return the masks that two values are, for rows and for columns, whichever of them marks padding.

    The end of a row that has no padding shows which does. What is marked has to be all in one run, but for labels:
    those of a prompt have no loss, either.
    """
    found = []
    for each in (mask, mask.T):
        for is_left in (False, True):
            marked = each if are_labels else each != (each[:, -1:] if is_left else each[:, :1])
            runs = _runs(marked, is_left)
            if bool(runs.any()) and (are_labels or int(runs.sum()) == int(marked.sum())):
                found.append(_Mask(tuple(each.shape), is_left, runs, what))
    return found


def _of_keys(mask: Any) -> Any:
    """Return a mask of attention as one of batch and keys, True where these do not count."""
    mask = mask.detach() <= MASKED if mask.is_floating_point() else mask
    while mask.dim() > 2:  # heads, then queries: the last one sees all keys where each sees only those before it
        mask = mask[:, 0] if mask.dim() > 3 else mask[:, -1]
    return mask


def _is_of_pixels(shape: Shape) -> bool:
    """Return whether a tensor may be a batch of images, or what layers make of them."""
    return len(shape) == 4 and min(shape[2:]) > 1


def _has_positions(made: Shape, rows: int, length: int) -> bool:
    """Return whether the result of an operation has values for each position of rows, also with heads or as columns."""
    if made[0] == rows * length or made[:2] == (length, rows):
        return True
    return len(made) > 2 and length in made[1:] and made[0] % rows == 0
