"""Finds modules that are called with one part of a batch after another, so that one call with all would do."""

import contextlib
import sys
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from training_profiler.inspections.compared_values import are_same, state_of
from training_profiler.inspections.flop_eligibility import plain_classes
from training_profiler.instrumentation.loop_detection.modules import is_bare
from training_profiler.instrumentation.loop_detection.outermost_call import ModuleCall
from training_profiler.recording.object_identity import ObjectIdentity
from training_profiler.snapshot.program import SliceFacts

MOSTLY: Final = 0.9  # of the calls
_PLAIN: Final = (int, float, str, bool, type(None))


class _Part(NamedTuple):
    """What a call gets of a batch."""

    whole: Any
    offset: int
    rows: int
    module: tuple[Any, ...]  # the module, the step, and the state before the call
    tensors: list[Any]  # of that state
    caller: Any


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
        self._module: tuple[Any, ...] = ()  # that got them, the step, and its state before the last of them
        self._tensors: list[ObjectIdentity] = []  # of that state
        self._seen: set[int] = set()  # offsets of its parts
        self._seen_rows = 0
        self._place = ""
        self._part: _Part | None = None  # of the call that is about to begin
        self._is_bare = False  # so is its module

    def begins(self, module: Any, inputs: tuple[Any, ...], caller: Any, step: int) -> None:
        """Handle an outermost call that is about to begin. Does not raise."""
        self._part, self._is_bare = None, is_bare(module)
        with contextlib.suppress(Exception):  # of tensors that are not torch's own, or a state that cannot be compared
            others = [value for value in inputs if type(value) not in _PLAIN]
            if len(others) == 1 and type(others[0]) in plain_classes(sys.modules["torch"]) and not self._is_bare:
                self._part = _part(module, others[0], caller, step)

    def begun(self, call: ModuleCall) -> None:
        """Take the call that was about to begin; one whose inner calls are recorded, too, may be a trainer's."""
        part, self._part = self._part, None
        if call.has_grad and not (call.is_explored or self._is_bare):
            self._calls += 1
            if part is not None:
                self._add(part)

    def _add(self, part: _Part) -> None:
        if (
            self._whole is None
            or not self._whole.matches(part.whole)
            or self._module != part.module
            or not are_same(self._tensors, part.tensors)
        ):
            self._whole, self._module, self._seen_rows = ObjectIdentity(part.whole), part.module, 0
            self._tensors = [ObjectIdentity(tensor) for tensor in part.tensors]
            self._seen.clear()
        if part.offset in self._seen:
            return
        self._seen.add(part.offset)
        self._seen_rows += part.rows
        if self._seen_rows == part.whole.shape[0]:
            self._slices += len(self._seen)
            self._rows += self._seen_rows
            self._of_rows = self._seen_rows
            self._whole = None
            self._place = self._place or self._place_of(part.caller)

    def facts(self, steps: int) -> SliceFacts | None:
        """Return the slices of so many steps; None without any, or where most calls have something else."""
        if not self._slices or self._slices < MOSTLY * self._calls:
            return None
        return SliceFacts(steps, self._slices, self._rows / self._slices, self._of_rows, self._place)


def _part(module: Any, tensor: Any, caller: Any, step: int) -> _Part | None:
    """Return the part of a batch that a call gets; None where its input is none."""
    whole, rows = tensor._base, tensor.shape[0] if tensor.dim() else 0
    if whole is None or not rows or tensor.dim() != whole.dim() or tensor.shape[1:] != whole.shape[1:]:
        return None
    if 2 * rows > whole.shape[0] or whole.storage_offset() or tensor.stride() != whole.stride():
        return None
    tensors: list[Any] = []
    state = state_of(module, tensors)
    return _Part(whole, tensor.storage_offset(), rows, (step, id(module), *state), tensors, caller)
