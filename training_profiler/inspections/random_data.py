"""Whether a data set draws random numbers for its samples, as far as its classes and functions show it by name.

Where workers make the batches, and where a data set has a generator of its own, the state of torch's and Python's
generators shows nothing. Nothing of the program is called.
"""

import contextlib
from collections.abc import Iterator
from itertools import islice
from types import FunctionType, MethodType
from typing import Any, Final

MOST_OBJECTS: Final = 256
MOST_OF_LIST: Final = 8
MOST_OF_DICT: Final = 64
DEPTH: Final = 5
OF_FUNCTIONS: Final = frozenset(
    (
        *("rand", "randn", "rand_like", "randn_like", "randint", "randint_like", "randrange", "randperm", "random"),
        *("random_", "random_sample", "uniform", "uniform_", "normal", "normal_", "standard_normal", "gauss"),
        *("bernoulli", "bernoulli_", "binomial", "multinomial", "choice", "choices", "sample", "shuffle"),
        *("permutation", "integers", "default_rng", "RandomState"),
    )
)
OF_CLASSES: Final = ("random", "augment", "jitter", "mixup", "cutmix", "cutout", "noise", "erasing")
_PLAIN: Final = ("torch", "builtins", "typing", "collections")
_LIBRARIES: Final = ("albumentations", "imgaug", "audiomentations", "volumentations", "kornia", "torch_audiomentations")


def draws_random_numbers(*objects: Any) -> bool:
    """Return whether one of these objects, or what they hold, seems to draw random numbers for a sample."""
    waiting = [(value, 0) for value in objects]
    visited: set[int] = set()
    while waiting:
        value, depth = waiting.pop()
        if id(value) in visited:
            continue
        if len(visited) >= MOST_OBJECTS:
            return False
        visited.add(id(value))
        if _is_random(value):
            return True
        if depth < DEPTH:
            waiting += [(inner, depth + 1) for inner in _held(value)]
    return False


def _is_random(value: Any) -> bool:
    if isinstance(value, MethodType):
        value = value.__func__
    if isinstance(value, FunctionType):
        return not OF_FUNCTIONS.isdisjoint(value.__code__.co_names)
    kind = type(value)
    if kind.__module__.partition(".")[0] in _LIBRARIES or any(word in kind.__name__.lower() for word in OF_CLASSES):
        return True
    names = ("__getitem__", "__iter__", "__call__", "__getitems__", "forward", "transform")
    own = [base for base in kind.__mro__ if base.__module__.partition(".")[0] not in _PLAIN]
    methods = [vars(base).get(name) for base in own for name in names]
    return any(isinstance(method, FunctionType) and _is_random(method) for method in methods)


def _held(value: Any) -> Iterator[Any]:
    """Yield what an object holds that may take part in making a sample; of long lists, the first are enough."""
    if isinstance(value, (list, tuple)):
        yield from islice(value, MOST_OF_LIST)
    elif isinstance(value, dict):
        yield from list(dict.values(value))[:MOST_OF_DICT]
    elif isinstance(value, MethodType):
        yield value.__self__
    elif isinstance(value, FunctionType):
        for cell in value.__closure__ or ():
            with contextlib.suppress(ValueError):  # it is empty
                yield cell.cell_contents
    elif type(value).__module__ != "builtins":
        attributes = getattr(value, "__dict__", None)
        if isinstance(attributes, dict):
            yield from list(attributes.values())[:MOST_OF_DICT]
