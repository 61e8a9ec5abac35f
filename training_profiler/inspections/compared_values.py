"""What the inputs of two calls of a module, or its state before them, have in common.

Both are given by a row of numbers and strings, and by the tensors that own the memory, whose identity is compared: a
number alone may be that of another tensor by then.
"""

import dataclasses
import logging
import re
import sys
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import Enum
from functools import lru_cache
from itertools import islice
from pathlib import PurePath
from types import BuiltinFunctionType, FunctionType, GetSetDescriptorType, MethodType, ModuleType, SimpleNamespace
from typing import Any, Final

from training_profiler.instrumentation.loop_detection.modules import modules_within, plain_classes
from training_profiler.recording.object_identity import ObjectIdentity

MOST_MODULES: Final = 2_000  # of a module whose state is read
MOST_OF_STATE: Final = 12_000  # numbers and strings
DEPTH: Final = 3  # of the objects within objects whose attributes are read
_CONTAINERS: Final[tuple[Any, ...]] = (list, tuple, set, frozenset, deque)
# Nothing that is computed depends on what is in them, but for functions that are replaced.
_BY_IDENTITY: Final = (
    *(FunctionType, BuiltinFunctionType, MethodType, ModuleType, type),
    *(re.Pattern, slice, range, bytes, complex, PurePath, logging.Logger),
)
_OF_TRAINERS: Final = ("lightning", "pytorch_lightning", "lightning_fabric")  # large, and different in each step


class _Object:
    """An object without slots, and without data in C, is as large as this one."""


def input_values(value: Any, tensors: list[Any]) -> Iterator[Any]:
    """Yield what two equal inputs have in common, and add the tensors that own the memory to ``tensors``.

    Raises:
        TypeError: it cannot be compared.
    """

    def others(kind: type, value: Any) -> Iterator[Any]:
        if issubclass(kind, Mapping):
            yield from input_values(dict(value), tensors)
        elif dataclasses.is_dataclass(kind):
            yield id(kind)
            fields = vars(value)  # without its properties
            for each in dataclasses.fields(kind):
                yield from input_values(fields[each.name], tensors)
        else:
            raise TypeError(kind.__name__)

    return _values(value, tensors, others)


def state_of(module: Any, tensors: list[Any]) -> tuple[Any, ...]:
    """Return what a call of the module may depend on besides its inputs and parameters; tensors as above.

    Such are switches, adapters that are off, masks, and what a module keeps from the call before. Running statistics of
    a normalization are left out: in training its output does not depend on them.

    Raises:
        TypeError: the state cannot be compared, or is too large.
    """
    torch = sys.modules["torch"]
    swaps = getattr(torch, "__future__", None)
    if swaps is not None and swaps.get_swap_module_params_on_conversion():
        raise TypeError("buffers may be swapped, which weak references forbid")
    modules = list(islice(modules_within(module), MOST_MODULES + 1))
    values = tuple(islice(_of_modules(torch, modules, tensors), MOST_OF_STATE + 1))
    if max(len(modules) - MOST_MODULES, len(values) - MOST_OF_STATE) > 0:
        raise TypeError("too much state")
    return values


def are_same(before: Sequence[ObjectIdentity], tensors: Sequence[Any]) -> bool:
    """Return whether these are the tensors from before."""
    return all(identity.matches(tensor) for identity, tensor in zip(before, tensors, strict=True))


def _of_modules(torch: Any, modules: list[Any], tensors: list[Any]) -> Iterator[Any]:
    own = _names_of_modules()
    normalization = torch.nn.modules.batchnorm._NormBase
    for module in modules:
        if type(module).__module__.startswith("torch.nn.parallel"):  # DDP counts its calls
            continue
        yield module.training
        yield len(module._forward_hooks) + len(module._forward_pre_hooks)
        for name, value in vars(module).items():
            if name not in own:
                yield from _state(value, tensors)
        if not isinstance(module, normalization):
            for buffer in module._buffers.values():
                yield from _state(buffer, tensors)


def _state(value: Any, tensors: list[Any], depth: int = DEPTH) -> Iterator[Any]:
    def others(kind: type, value: Any) -> Iterator[Any]:
        yield id(value)
        if depth and not _is_constant(kind):
            for inner in _attributes(kind, value).values():
                yield from _state(inner, tensors, depth - 1)

    return _values(value, tensors, others)


def _values(value: Any, tensors: list[Any], others: Callable[[type, Any], Iterator[Any]]) -> Iterator[Any]:
    """Yield what a value is, through containers; ``others`` is asked for objects of other classes."""
    kind = type(value)  # isinstance would ask an object that stands for another one
    if issubclass(kind, (int, float, str, Enum, type(None))):
        yield from _plain(kind, value)
    elif kind in plain_classes(sys.modules["torch"]):
        yield from _tensor(value, tensors)
    elif issubclass(kind, _CONTAINERS):
        base = next(base for base in _CONTAINERS if issubclass(kind, base))
        yield base.__len__(value)
        for inner in base.__iter__(value):
            yield from _values(inner, tensors, others)
    elif issubclass(kind, dict):
        yield dict.__len__(value)
        for pair in dict.items(value):
            for inner in pair:
                yield from _values(inner, tensors, others)
    else:
        yield from others(kind, value)


def _plain(kind: type, value: Any) -> Iterator[Any]:
    """Yield a number, string, or member of an enumeration, without its class, which would keep a program alive."""
    if issubclass(kind, Enum):
        yield id(value)
    elif issubclass(kind, int):
        yield int.__int__(value)
    elif issubclass(kind, float):
        yield float.__float__(value)
    else:
        yield None if value is None else str.__str__(value)


def _tensor(value: Any, tensors: list[Any]) -> Iterator[Any]:
    owner = value if value._base is None else value._base
    tensors.append(owner)
    yield id(owner), value._version, value.requires_grad
    yield value.storage_offset(), tuple(value.shape), value.stride(), value.dtype


def _is_constant(kind: type) -> bool:
    torch = sys.modules["torch"]
    constants = (*_BY_IDENTITY, torch.dtype, torch.device, torch.layout, torch.memory_format, torch.nn.Module)
    return issubclass(kind, constants) or kind.__module__.partition(".")[0] in _OF_TRAINERS


def _attributes(kind: type, value: Any) -> dict[str, Any]:
    """Return the attributes of an object, and call nothing of the program; a TypeError if it holds anything else."""
    if kind is SimpleNamespace:
        return dict(vars(value))
    place = next((vars(base)["__dict__"] for base in kind.__mro__ if "__dict__" in vars(base)), None)
    if not isinstance(place, GetSetDescriptorType) or kind.__basicsize__ != _Object.__basicsize__:
        raise TypeError(kind.__name__)
    attributes: dict[str, Any] = place.__get__(value)
    return attributes


@lru_cache(1)
def _names_of_modules() -> frozenset[str]:
    """Return the attributes that each module of torch has."""
    return frozenset(vars(sys.modules["torch"].nn.Module()))
