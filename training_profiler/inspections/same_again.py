"""Finds lines that compute the same in each forward pass: constant tensors, and what unchanged data is turned into.

A dispatch mode names each tensor of a few passes after the operation that made it, its inputs and some of its values.
A batch, a trained parameter and random numbers have no name, nor has anything that is computed from them. Operations of
a line with the same names in all passes did the same. Nothing of the program is kept alive.
"""

import importlib
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Callable
from threading import get_ident
from time import thread_time_ns
from typing import Any, Final, NamedTuple

from training_profiler.inspections.inspection import dispatch_mode, is_watched, mode_stack, why_not_counted
from training_profiler.instrumentation.context import PatchContext
from training_profiler.instrumentation.loop_detection.loop_detector import LoopDetector
from training_profiler.model.program import ConstantLine

PASSES: Final = 4  # the first only shows which tensors there are before a pass
MOST_STEPS: Final = 12  # in which these are looked for
MOST_NS: Final = 600_000_000  # for naming: about 10 us an operation
LONG_NS: Final = 150_000_000  # after which one pass less has to do
MOST_LINES: Final = 64
LEAST_PART: Final = 0.1  # of a line's time, that did the same
VALUES: Final = 64  # of a result, evenly spread
FEW: Final = 1_000  # numbers; a shorter list may be the lengths or labels of a batch, and the same by chance ...
FRACTIONS: Final = 3  # ... unless so many numbers in it differ and are not whole
BY_SHAPE: Final = frozenset(f"aten::{name}" for name in (
    "zeros_like", "ones_like", "full_like", "empty_like", "new_zeros", "new_ones", "new_full", "new_empty",
))  # fmt: skip
Place = tuple[str, int, str]  # a line of the user's: file, number, function
Names = dict[Place, Counter[Any]]  # how often, or how long
NOWHERE: Final[Place] = ("", 0, "")
OF_RANKS: Final = re.compile(r"[/\\]torch[/\\](nn[/\\]parallel|distributed)[/\\]")  # such as DDP broadcasting buffers


class _Memory(NamedTuple):
    """What tensors share."""

    reference: Any  # it keeps others from getting the same number
    name: Any  # of its content; None: it varies
    place: Place  # that made it


class _VariesError(Exception):
    """An input has no name."""


class SameAgain:
    """Names operations from the arrival of a batch, or from the first call of a module, to the backward pass."""

    def __init__(self, context: PatchContext) -> None:
        self._context = context
        self._restore: Callable[[], None] | None = None
        self._mode: Any = None
        self._thread = self._steps = self.spent_ns = 0
        self.named_steps = 0  # since it began, up to the last one in which operations were named
        self._is_open = self._is_over = False
        self._modules: set[int] = set()  # that were found fit for a dispatch mode
        self._files: dict[str, str] = {}  # names of the user's files in reports, by those of code; "" of others
        self._before: dict[int, Any] = {}  # references to memory from before a pass
        self._storages: dict[int, _Memory] = {}
        self._names: defaultdict[Place, Counter[Any]] = defaultdict(Counter)  # of the pass under way
        self._ns: defaultdict[Place, Counter[Any]] = defaultdict(Counter)  # of all passes
        self._written: set[Place] = set()  # lines whose tensors get other content later
        self._passes: list[Names] = []
        self.lines: tuple[ConstantLine, ...] = ()

    def begin(self, detector: LoopDetector) -> None:
        """Look at the passes from now on."""
        if self._is_over or self._restore is not None or self._context.captures.has_replayed_updates:
            return
        torch = self._torch = sys.modules["torch"]
        self._weak = importlib.import_module("torch.multiprocessing.reductions").StorageWeakRef
        fetch_begins, fetch_ends, call_begins = detector.fetch_begins, detector.fetch_ends, detector.call_begins
        backward_begins, update_ends = detector.backward_begins, detector.update_ends

        def named_fetch_begins(iterator: Any, is_first: bool) -> Any:
            self._leave(is_whole=False)  # workers that begin there would inherit the mode
            return fetch_begins(iterator, is_first)

        def named_fetch_ends(loader_pass: Any, batch: Any = None) -> None:
            fetch_ends(loader_pass, batch)
            if torch.is_grad_enabled():
                self._try(self._enter)

        def named_call_begins(module: Any, inputs: Any, may_explore: bool, caller: Any, function: int = 0) -> Any:
            call = call_begins(module, inputs, may_explore, caller, function)
            if call.has_grad:
                self._try(self._called, module)
            return call

        def named_backward_begins() -> None:
            self._leave(is_whole=True)
            backward_begins()

        def named_update_ends(optimizer: Any, has_updated: bool = True) -> None:
            self._leave(is_whole=False)
            update_ends(optimizer, has_updated)
            self._steps += 1
            if self._is_over or self._steps > MOST_STEPS or self._has_enough():
                self.stop()

        methods: dict[str, Callable[..., Any]] = {
            "fetch_begins": named_fetch_begins,
            "fetch_ends": named_fetch_ends,
            "call_begins": named_call_begins,
            "backward_begins": named_backward_begins,
            "update_ends": named_update_ends,
        }
        self._restore = detector.shadow(**methods)

    def stop(self) -> None:
        """Restore the detector, decide what was found, and forget the program's tensors."""
        self._leave(is_whole=False)
        restore, self._restore = self._restore, None
        if restore is not None:
            restore()
            if self._has_enough():
                self.lines = _constant(self._passes[1:], self._written, self._ns)
        self._is_over = True
        self._before.clear()
        self._passes.clear()

    def _try(self, work: Callable[..., None], *args: Any) -> None:
        """Call ``work``; nothing is looked at any more where it fails, such as without a private name of torch."""
        try:
            work(*args)
        except Exception:
            self._is_over = True

    def _has_enough(self) -> bool:
        return len(self._passes) >= PASSES - (self.spent_ns > LONG_NS)

    def _called(self, module: Any) -> None:
        if id(module) not in self._modules:
            self._leave(is_whole=False)
            self._modules.add(id(module))
            self._is_over |= why_not_counted(self._torch, module) is not None
        else:
            self._enter()

    def _enter(self) -> None:
        """Begin to name operations; the first step only shows which modules it would be for."""
        if self._is_open or self._is_over or not self._steps or self._has_enough():
            return
        if is_watched() or why_not_counted(self._torch) is not None:
            self._is_over = True
            return
        if self._mode is None:

            def named(_: Any, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
                name, began_ns = self._name_of(func, args, kwargs), thread_time_ns()
                out = func(*args, **kwargs) if kwargs else func(*args)
                self._ran(func, name, args, out, thread_time_ns() - began_ns)
                return out

            self._mode = dispatch_mode("NamingMode", named)
        self._names, self._is_open, self._thread = defaultdict(Counter), True, get_ident()
        self._mode.__enter__()

    def _leave(self, is_whole: bool) -> None:
        if not self._is_open or self._thread != get_ident():
            return
        self._is_open, stack, self.named_steps = False, mode_stack(), self._steps + 1
        if stack and stack[-1] is self._mode:
            self._mode.__exit__(None, None, None)
            if is_whole and self._names and not self._is_over:
                self._passes.append(self._names)
        else:  # the program entered another mode and has not left it
            self._is_over = True
        self._storages.clear()

    def _name_of(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Return what an operation about to run is named after; None if it varies."""
        if self._is_over:
            return None
        began_ns, name = thread_time_ns(), None
        try:
            by_shape = func._schema.name in BY_SHAPE
            parts = tuple(self._part(each, by_shape) for each in (*args, *(kwargs or {}).items()))
            if self._torch.Tag.nondeterministic_seeded not in func.tags and self._passes:
                name = hash((func, parts))
        except Exception:  # such as _VariesError
            name = None
        self.spent_ns += thread_time_ns() - began_ns
        return name

    def _ran(self, func: Any, name: Any, args: Any, out: Any, spent_ns: int) -> None:
        """Note what an operation has made and written."""
        if self._is_over:
            return
        began_ns = thread_time_ns()
        try:
            place = self._place(sys._getframe(2))
            outputs = [each for each in (out if isinstance(out, (tuple, list)) else (out,)) if self._is_tensor(each)]
            if func._schema.name == "aten::lift_fresh" and self._passes:  # of a list, or a number
                values = outputs[0]
                numbers = _values(values, values.numel())
                is_sure = numbers and (not values.dim() or len(numbers) >= FEW or _are_figures(values, numbers))
                name = hash((tuple(values.shape), numbers)) if is_sure else None
                self._storages.pop(values.untyped_storage()._cdata, None)
            made = [storage for each in outputs if (storage := each.untyped_storage())._cdata not in self._storages]
            if name is not None and (made or func._schema.is_mutable):  # a view has values that were compared
                name = hash((name, *map(_values, outputs)))
            self._names[place][name] += 1
            if self._passes and (made or func._schema.is_mutable):
                self._ns[place][name] += spent_ns
            if func._schema.is_mutable:
                self._write(func, args, name)
            for number, storage in enumerate(made):
                its_name = None if name is None else (name, number)
                self._storages[storage._cdata] = _Memory(self._weak(storage), its_name, place)
        except Exception:  # of tensors that are not torch's own
            self._is_over = True
        self.spent_ns += thread_time_ns() - began_ns
        self._is_over |= self.spent_ns > MOST_NS

    def _write(self, func: Any, args: Any, name: Any) -> None:
        for argument, value in zip(func._schema.arguments, args, strict=False):
            is_written = argument.alias_info is not None and argument.alias_info.is_write and self._is_tensor(value)
            key = value.untyped_storage()._cdata if is_written else 0
            if key in self._storages:
                if name is None and self._passes:
                    self._written.add(self._storages[key].place)
                self._storages[key] = self._storages[key]._replace(name=name)

    def _is_tensor(self, value: Any) -> bool:
        return isinstance(value, self._torch.Tensor)

    def _part(self, value: Any, by_shape: bool = False) -> Any:
        """Return what stands for an argument in the name of an operation.

        Raises:
            _VariesError: it is, or has, a tensor without a name.
        """
        if isinstance(value, (list, tuple)):
            return tuple(self._part(each) for each in value)
        if isinstance(value, self._torch.Generator):
            raise _VariesError
        if not self._is_tensor(value):
            return value
        known = self._known(value)
        shape = tuple(value.shape), value.dtype, value.device
        if by_shape:
            return shape
        if known.name is None and self._passes:
            raise _VariesError
        return known.name, value.storage_offset(), value.stride(), *shape

    def _known(self, tensor: Any) -> _Memory:
        """Return the memory of a tensor; what the pass has not made has a name if it was there in the first one."""
        storage = tensor.untyped_storage()
        key = storage._cdata
        known = self._storages.get(key)
        if known is None:
            is_first = not self._passes
            if is_first and key not in self._before:
                self._before[key] = self._weak(storage)  # it keeps others from getting this number
            varies = is_first or key not in self._before or tensor.requires_grad or tensor.is_inference()
            name = None if varies else (key, tensor._version)
            known = self._storages[key] = _Memory(self._weak(storage), name, NOWHERE)
        return known

    def _place(self, frame: Any) -> Place:
        """Return the user's line of a stack."""
        while frame is not None:
            code = frame.f_code
            file = self._files.get(code.co_filename)
            if file is None:
                site = self._context.calls.site(frame)
                is_own = site is not None and site.line == frame.f_lineno  # else a frame further out is the user's
                file = site.file if site is not None and is_own else ""
                self._files[code.co_filename] = file = "?" if OF_RANKS.search(code.co_filename) else file
            if file == "?":  # no line of the user's does this
                return NOWHERE
            if file:
                return file, frame.f_lineno, code.co_qualname
            frame = frame.f_back
        return NOWHERE


def _values(tensor: Any, most: int = VALUES) -> tuple[Any, ...]:
    """Return some values of a tensor on the CPU; elsewhere reading them would wait for the device."""
    if not tensor.is_cpu or not tensor.is_contiguous() or not tensor.numel():
        return ()
    return tuple(tensor.detach().view(-1)[:: max(1, tensor.numel() // most)][:most].tolist())


def _are_figures(values: Any, numbers: tuple[float, ...]) -> bool:
    return values.is_floating_point() and len({each for each in numbers if each % 1}) >= FRACTIONS


def _constant(passes: list[Names], written: set[Place], ns: Names) -> tuple[ConstantLine, ...]:
    """Return the lines that did the same in all passes for a part of their time, and whether their functions did so."""
    found: dict[Place, tuple[int, float]] = {}
    for place, names in passes[0].items():
        if place[0] and place not in written and all(place in each for each in passes):
            same = {name for name in names.keys() - {None} if len({each[place][name] for each in passes}) == 1}
            part = sum(ns[place][name] for name in same) / max(1, sum(ns[place].values()))
            part = 1.0 if all(each[place].keys() <= same for each in passes) else min(0.99, part)
            if part >= LEAST_PART:
                found[place] = max(names[name] for name in same), part
    different = {place[::2] for each in passes for place in each if found.get(place, (0, 0.0))[1] < 1}
    lines = [ConstantLine(*place, times, place[::2] not in different, part) for place, (times, part) in found.items()]
    return tuple(lines[:MOST_LINES])
