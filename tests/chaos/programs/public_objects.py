"""Does everything to everything public, and writes what came of it to a file: a value, or an exception."""

import asyncio
import contextlib
import copy
import functools
import inspect
import io
import json
import pickle
import re
import sys
import threading
import unittest
import weakref
from collections.abc import Iterable, Iterator, Sized

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import training_profiler
from training_profiler import (
    profile_dataloader,
    profile_epoch,
    profile_phase,
    profile_section,
    profile_step,
    snapshot,
    start_training_profiling,
    stop_training_profiling,
)

STATE = sys.argv[2]
if STATE == "started":
    start_training_profiling(log_every=1000, stream="stderr")
    with profile_section("before"):
        pass
    profile_step()


@profile_section("function")
def function(x, *, y=2):
    """Document itself."""
    return x + y


@profile_section("generator")
def generator(n):
    got = yield n
    return got


@profile_section("coroutine")
async def coroutine(n):
    return n


@profile_section("asynchronous generator")
async def async_generator(n):
    yield n


@profile_section("cached")
@functools.lru_cache
def cached(n):
    return n


@profile_section("class")
class Decorated(nn.Module):
    def forward(self, x):
        return x


class Methods:
    section = profile_section("of a class")

    @profile_section("method")
    def method(self, n):
        return n

    @profile_section("static")
    @staticmethod
    def static(n):
        return n

    @profile_section("of the class")
    @classmethod
    def of_class(cls, n):
        return cls.__name__, n

    @property
    @profile_section("property")
    def property(self):
        return 3


class Loader:
    """A loader with attributes and methods of its own."""

    def __init__(self):
        self._loader, self._section, self.epoch = "mine", "mine", 0

    def __iter__(self):
        return iter([torch.ones(2), torch.ones(2)])

    def __len__(self):
        return 2

    def __contains__(self, value):
        return value == 3

    def __call__(self, n):
        return n + self.epoch

    def __repr__(self):
        return f"Loader({self.epoch})"

    def __eq__(self, other):
        return isinstance(other, Loader) and self.epoch == other.epoch

    def __getstate__(self):
        return {"epoch": self.epoch}

    def __enter__(self):
        return "entered"

    def __exit__(self, *exception):
        return True


class Sequence:
    def __getitem__(self, index):
        return [1, 2, 3][index]


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(2, 2)
        self.section = profile_section("forward_pass")
        self.loader = profile_dataloader(torch_loader(), name="kept")
        self.phase = profile_phase("validation")

    def forward(self, x):
        with self.section:
            return self.inner(x)


def torch_loader():
    return DataLoader(TensorDataset(torch.arange(4.0).view(4, 1)), batch_size=2)


def optimizer():
    model = nn.Linear(2, 1)
    made = torch.optim.Adam(model.parameters())
    model(torch.ones(1, 2)).sum().backward()
    made.step()
    return made


def used(make):
    thing = make()
    with thing:
        pass
    return thing


OBJECTS = {
    "section": lambda: profile_section("a"),
    "used section": lambda: used(lambda: profile_section("a")),
    "section of a class": lambda: Methods.section,
    "epoch": lambda: profile_epoch(1),
    "epoch without a number": lambda: profile_epoch("one"),
    "training phase": lambda: profile_phase("train"),
    "validation phase": lambda: profile_phase("validation"),
    "unknown phase": lambda: profile_phase("night"),
    "snapshot": lambda: type(snapshot())(),
    "loader of torch": lambda: profile_dataloader(torch_loader(), name="a"),
    "loader of torch twice": lambda: profile_dataloader(profile_dataloader(torch_loader())),
    "list": lambda: profile_dataloader([1, 2, 3]),
    "generator as loader": lambda: profile_dataloader(n for n in range(3)),
    "list iterator": lambda: profile_dataloader(iter([1, 2, 3])),
    "own loader": lambda: profile_dataloader(Loader()),
    "sequence": lambda: profile_dataloader(Sequence()),
    "no loader": lambda: profile_dataloader(3),
    "pass": lambda: iter(profile_dataloader(torch_loader())),
    "pass over a list": lambda: iter(profile_dataloader([1, 2, 3])),
    "plain loader": torch_loader,
    "plain pass": lambda: iter(torch_loader()),
    "model": Model,
    "optimizer": optimizer,
    "scaler": lambda: torch.amp.GradScaler("cpu"),
    "function": lambda: function,
    "generator function": lambda: generator,
    "coroutine function": lambda: coroutine,
    "asynchronous generator function": lambda: async_generator,
    "cached function": lambda: cached,
    "decorated class": lambda: Decorated,
    "module of a decorated class": lambda: Decorated(),
    "decorated module": lambda: profile_section("m")(nn.Linear(1, 1)),
    "decorated partial": lambda: profile_section("p")(functools.partial(function, 1)),
    "methods": Methods,
    "bound method": lambda: Methods().method,
    "static method": lambda: Methods.static,
    "class method": lambda: Methods.of_class,
    **{name: functools.partial(getattr, training_profiler, name) for name in training_profiler.__all__},
    **{f"torch {f.__name__}": lambda f=f: f for f in (torch.save, torch.autograd.backward, torch.Tensor.to)},
    "torch Module.__call__": lambda: nn.Module.__call__,
    "torch norm": lambda: nn.utils.clip_grad_norm_,
}


def nested(thing):
    with thing as one, thing as other:
        return one, other


def stacked(thing):
    with contextlib.ExitStack() as stack:
        return stack.enter_context(thing)


async def async_stacked(thing):
    async with contextlib.AsyncExitStack() as stack:
        return stack.enter_context(thing)


async def async_entered(thing):
    async with contextlib.AsyncExitStack() as stack:
        return await stack.enter_async_context(thing)


async def async_with(thing):
    async with thing as value:
        return value


def in_test_case(thing):
    case = unittest.TestCase()
    try:
        return case.enterContext(thing)
    finally:
        case.doCleanups()


def raising(thing):
    with thing:
        raise KeyError("of the program")


def on_another_thread(thing):
    results = []
    thread = threading.Thread(target=lambda: results.append(outcome(nested, thing)))
    thread.start()
    thread.join()
    return results


def stored(thing):
    class Holder:
        pass

    holder = Holder()
    holder.thing = thing
    with copy.deepcopy(holder).thing as value:
        return value


def pickled(thing, protocol):
    return pickle.loads(pickle.dumps(thing, protocol))


def pickled_alike(thing):
    return pickled(thing, 4) == thing


def saved_by_torch(thing):
    file = io.BytesIO()
    torch.save(thing, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


def by(name):
    def pickled_by(thing):
        library = __import__(name)
        return library.loads(library.dumps(thing))

    return pickled_by


def set_attribute(thing):
    thing.epoch = 7
    return thing.epoch


def delete_attribute(thing):
    thing.epoch = 7
    del thing.epoch
    return hasattr(thing, "epoch")


def twice(thing):
    return [describe(list(thing)) for _ in range(2)]


def order_of_random_numbers(thing):
    torch.manual_seed(0)
    iterator = iter(thing)
    first = torch.rand(1).item()
    next(iterator)
    return first, torch.rand(1).item()


def bare_decorator(thing):
    @thing
    def decorated(n):
        return n

    return decorated(3)


def module_name(thing):
    return thing.__module__, getattr(thing, "__qualname__", None)


KINDS = (contextlib.AbstractContextManager, Iterable, Iterator, Sized, DataLoader, nn.Module, list, Loader)
OPERATIONS = {
    "with": nested,
    "ExitStack": stacked,
    "type(x).__enter__(x)": lambda x: type(x).__enter__(x),
    "type(x).__exit__(x)": lambda x: type(x).__exit__(x, None, None, None),
    "x.__enter__()": lambda x: x.__enter__(),
    "x.__exit__()": lambda x: x.__exit__(None, None, None),
    "AsyncExitStack": lambda x: asyncio.run(async_stacked(x)),
    "enter_async_context": lambda x: asyncio.run(async_entered(x)),
    "async with": lambda x: asyncio.run(async_with(x)),
    "TestCase.enterContext": in_test_case,
    "raise inside": raising,
    "another thread": on_another_thread,
    "stored": stored,
    "copy": copy.copy,
    "copy is": lambda x: copy.copy(x) is x,
    "deepcopy": copy.deepcopy,
    "deepcopy is": lambda x: copy.deepcopy(x) is x,
    **{f"pickle {n}": functools.partial(pickled, protocol=n) for n in range(pickle.HIGHEST_PROTOCOL + 1)},
    "pickle ==": pickled_alike,
    "cloudpickle": by("cloudpickle"),
    "dill": by("dill"),
    "torch.save": saved_by_torch,
    "repr": repr,
    "str": str,
    "format": lambda x: f"{x}",
    "bool": bool,
    "== itself": lambda x: x == x,
    "!= itself": lambda x: x != x,
    "== its copy": lambda x: x == copy.copy(x),
    "== 3": lambda x: x == 3,
    "== another": lambda x: x == profile_section("b"),
    "hash": lambda x: type(hash(x)),
    "in a set": lambda x: len({x, x, profile_section("b")}),
    "parameters": lambda x: [(p.name, str(p.kind), repr(p.default)) for p in inspect.signature(x).parameters.values()],
    "doc": lambda x: (x.__doc__ or "").splitlines()[:1] if inspect.isfunction(x) and x is function else None,
    "module": module_name,
    "isinstance": lambda x: [isinstance(x, kind) for kind in KINDS],
    "kind": lambda x: [getattr(inspect, n)(x) for n in dir(inspect) if n.startswith("is") and n != "isfunction"],
    "callable": callable,
    "weakref": lambda x: weakref.ref(x)() is x,
    "missing attribute": lambda x: x.no_such_attribute,
    "set an attribute": set_attribute,
    "delete an attribute": delete_attribute,
    "own attributes": lambda x: (x._loader, x._section),
    "vars": lambda x: sorted(vars(x)) if not inspect.isroutine(x) else None,
    "len": len,
    "contains": lambda x: 3 in x,
    "[0]": lambda x: x[0],
    "[-1:]": lambda x: x[-1:],
    "list": list,
    "list twice": twice,
    "iter is": lambda x: iter(x) is x,
    "next": next,
    "next of iter": lambda x: next(iter(x)),
    "len of iter": lambda x: len(iter(x)),
    "type of iter": lambda x: iter(x),
    "reversed": lambda x: list(reversed(x)),
    "zip": lambda x: [len(row) for row in zip(x, range(9), strict=False)],
    "send": lambda x: x.send(None),
    "random numbers": order_of_random_numbers,
    "attributes of a loader": lambda x: (x.batch_size, x.dataset[0], x.sampler),
    "call": lambda x: x(1),
    "call with nothing": lambda x: x(),
    "call with two": lambda x: x(1, 2),
    "call with an unknown name": lambda x: x(unknown=1),
    "decorate": bare_decorator,
    "cache_info": lambda x: x.cache_info().maxsize,
    "parameters of a module": lambda x: sorted(name for name, _ in x.named_parameters()),
    "members": lambda x: (x.method(1), x.static(1), x.of_class(1), x.property),
    "coroutine": lambda x: asyncio.run(x(1)),
    "json": json.dumps,
    "dict": lambda x: sorted(n for n in dir(x) if not n.startswith("__")) if isinstance(x, DataLoader) else None,
}
# What would change the run itself.
LEFT_OUT = {"call", "call with nothing", "call with two", "call with an unknown name", "decorate", "coroutine"}
STATEFUL = {"start_training_profiling", "stop_training_profiling", "snapshot", "is_profiling_enabled", "profile_step"}


def describe(value):
    """Return what a program can see of a value."""
    if isinstance(value, torch.Tensor):
        return f"tensor {value.tolist()}"
    if isinstance(value, (tuple, list)) and not isinstance(value, torch.Size):
        return [describe(one) for one in value]
    if inspect.isroutine(value):
        return f"{value.__module__}.{value.__qualname__}"
    return re.sub(r"0x[0-9a-f]+", "0x", repr(value))


def message(error):
    """Return the text of an exception. Python names types of its own together with their module."""
    return re.sub(r"0x[0-9a-f]+", "0x", str(error)).replace("functools.", "")


def outcome(operation, thing):
    """Return what comes of an operation."""
    try:
        return describe(operation(thing))
    except BaseException as error:
        return f"{type(error).__name__}: {message(error)}"


results = {}
for name, make in OBJECTS.items():
    for what, operation in OPERATIONS.items():
        if name in STATEFUL and what in LEFT_OUT and what != "call with an unknown name":
            continue
        results[f"{name} / {what}"] = outcome(operation, make())
with open(sys.argv[1], "w") as file:
    json.dump(results, file, indent=1)
sys.stdout.flush()
if STATE == "started":
    stop_training_profiling()
