"""Finds modules that are called with one part of a batch after another, so that one call with all would do."""

import contextlib
import sys
from collections import deque
from collections.abc import Callable
from itertools import islice
from typing import Any, Final

from training_profiler.instrumentation.flops.eligibility import plain_classes
from training_profiler.instrumentation.loop_detection.modules import is_bare, modules_within
from training_profiler.recording.object_identity import ObjectIdentity
from training_profiler.snapshot.program import SliceFacts

MOSTLY: Final = 0.9  # of the calls
MOST_MODULES: Final = 100  # among which a state is looked for
_PLAIN: Final = (int, float, str, bool, type(None))
_CONTAINERS: Final = (list, dict, set, deque)


class SlicedBatches:
    """Looks at the outermost calls of some steps, by the shapes of their inputs.

    A batch counts if one module got all of its rows in one step, in one part after another. One row of a sequence,
    without the dimension of rows, may be a moment of time. A call that gets anything else, such as a second tensor, may
    need the one before it, as a recurrent cell does, and so may one of a module that keeps a state.

    Args:
        place_of: returns the user's line of a stack, "" if unknown.
    """

    def __init__(self, place_of: Callable[[Any], str]) -> None:
        self._place_of = place_of
        self._calls = self._slices = self._rows = self._of_rows = 0
        self._whole: ObjectIdentity | None = None  # the batch whose parts are seen
        self._module: tuple[int, int, Any] = 0, 0, ()  # that got them, the step, and its state before the last of them
        self._seen: set[int] = set()  # offsets of its parts
        self._seen_rows = 0
        self._place = ""

    def begins(self, module: Any, inputs: tuple[Any, ...], caller: Any, step: int) -> None:
        """Handle the begin of an outermost call. Does not raise."""
        with contextlib.suppress(Exception):  # of tensors that are not torch's own
            if is_bare(module):
                return
            self._calls += 1
            others = [value for value in inputs if type(value) not in _PLAIN]
            if len(others) == 1 and type(others[0]) in plain_classes(sys.modules["torch"]):
                self._add(module, others[0], caller, step)

    def _add(self, module: Any, tensor: Any, caller: Any, step: int) -> None:
        whole = tensor._base
        if whole is None or not whole.dim() or tensor.shape[1:] != whole.shape[1:] or tensor.dim() != whole.dim():
            return
        of_rows, rows = whole.shape[0], tensor.shape[0]
        if not rows or 2 * rows > of_rows or whole.storage_offset() or tensor.stride() != whole.stride():
            return
        now = step, id(module), _state(module)
        if self._whole is None or not self._whole.matches(whole) or self._module != now:
            self._whole, self._module, self._seen_rows = ObjectIdentity(whole), now, 0
            self._seen.clear()
        offset = tensor.storage_offset()
        if offset in self._seen:
            return
        self._seen.add(offset)
        self._seen_rows += rows
        if self._seen_rows == of_rows:
            self._slices += len(self._seen)
            self._rows += of_rows
            self._of_rows = of_rows
            self._whole = None
            self._place = self._place or self._place_of(caller)

    def facts(self, steps: int) -> SliceFacts | None:
        """Return the slices of so many steps; None without any, or where most calls have something else."""
        if not self._slices or self._slices < MOSTLY * self._calls:
            return None
        return SliceFacts(steps, self._slices, self._rows / self._slices, self._of_rows, self._place)


def _state(module: Any) -> tuple[Any, ...]:
    """Return what changes where a module keeps something from one call to the next, as spiking neurons do."""
    tensors = plain_classes(sys.modules["torch"])
    return tuple(
        _mark(value, tensors)
        for inner in islice(modules_within(module), MOST_MODULES)
        for value in (*vars(inner).values(), *inner._buffers.values())
    )


def _mark(value: Any, tensors: Any) -> Any:
    kind = type(value)
    if kind in _PLAIN:
        return value
    if kind in tensors:
        return id(value), value._version
    return (id(value), len(value)) if kind in _CONTAINERS else id(value)
