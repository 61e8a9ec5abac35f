"""Writes what a program can see of its interpreter and of torch, at four moments of a training."""

import atexit
import builtins
import contextlib
import copy
import faulthandler
import gc
import hashlib
import importlib
import inspect
import io
import json
import locale
import logging
import multiprocessing
import os
import pickle
import random
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback
import warnings
import weakref

VIEWS = {}
HANDLERS = [name for name in dir(signal) if name.startswith("SIG") and not name.startswith("SIG_")]
MODULES = (
    builtins, copy, gc, importlib, inspect, io, json, logging, multiprocessing, os, pickle, random, signal, socket,
    subprocess, sys, threading, time, traceback, warnings, weakref,
)  # fmt: skip
HOOKS = ("excepthook", "displayhook", "unraisablehook", "breakpointhook")
PATCHED = (
    "nn.Module.__call__",
    "nn.Module.to",
    "nn.Module.zero_grad",
    "Tensor.to",
    "Tensor.backward",
    "autograd.backward",
    "autograd.grad",
    "fx.Tracer.trace",
    "jit.trace",
    "save",
    "load",
    "optim.SGD.step",
    "optim.Optimizer.zero_grad",
    "nn.utils.clip_grad_norm_",
    "utils.data.DataLoader.__iter__",
    "utils.data.dataloader._BaseDataLoaderIter.__next__",
)


def digest(value):
    """Return a short text that differs for different values."""
    return hashlib.sha256(repr(value).encode()).hexdigest()[:12]


def attribute(torch, path):
    """Return what is at ``path`` in torch."""
    for name in path.split("."):
        torch = getattr(torch, name)
    return torch


def or_none(work, *arguments):
    """Return the result; None where there is none."""
    try:
        return work(*arguments)
    except (TypeError, OSError, ValueError, RuntimeError, AttributeError, pickle.PicklingError):
        return None


def descriptors():
    """Return what the open descriptors are."""
    kinds = []
    for number in os.listdir("/proc/self/fd"):
        target = or_none(os.readlink, f"/proc/self/fd/{number}")
        if target is not None and not target.startswith("/proc/"):
            kinds.append(target.partition(":")[0] if not target.startswith("/") else os.path.basename(target))
    return sorted(kinds)


def functions_of(module):
    """Return what the functions of a module are."""
    return {
        name: f"{type(value).__name__} {getattr(value, '__module__', '')}.{getattr(value, '__qualname__', '')}"
        for name, value in vars(module).items()
        if callable(value)
    }


def next_descriptor():
    """Return the number that the next file gets."""
    descriptor = os.dup(1)
    os.close(descriptor)
    return descriptor


def depth(level=0):
    """Return how deep a function can call itself."""
    try:
        return depth(level + 1)
    except RecursionError:
        return level


def stream(file):
    """Return how a standard stream is set."""
    return [
        type(file).__name__, type(file.buffer).__name__, file.encoding, file.errors, file.line_buffering, file.isatty(),
        file.name,
    ]  # fmt: skip


def of_python():
    """Return what can be seen without torch."""
    return {
        **{f"functions of {module.__name__}": functions_of(module) for module in MODULES},
        "next descriptor": next_descriptor(),
        "os.listdir()": sorted(set(os.listdir()) - {"views.json"}),
        "threads of the process": len(os.listdir("/proc/self/task")),
        "depth of recursion": depth(),
        "standard streams": [stream(file) for file in (sys.stdin, sys.stdout, sys.stderr)],
        "sys.warnoptions, sys._xoptions": [sys.warnoptions, sys._xoptions],
        "sys.get_int_max_str_digits()": sys.get_int_max_str_digits(),
        "threading.gettrace(), threading.getprofile()": [repr(threading.gettrace()), repr(threading.getprofile())],
        "threading.stack_size()": threading.stack_size(),
        "faulthandler.is_enabled()": faulthandler.is_enabled(),
        "multiprocessing": multiprocessing.get_start_method(allow_none=True),
        "limits": {name: resource.getrlimit(getattr(resource, name)) for name in dir(resource) if "RLIMIT_" in name},
        "priority, processors": [os.getpriority(os.PRIO_PROCESS, 0), sorted(os.sched_getaffinity(0))],
        "timers": [
            signal.getitimer(timer) for timer in (signal.ITIMER_REAL, signal.ITIMER_VIRTUAL, signal.ITIMER_PROF)
        ],
        "loggers": sorted({name.partition(".")[0] for name in logging.root.manager.loggerDict}),
        "tools of sys.monitoring": [sys.monitoring.get_tool(tool) for tool in range(6)]
        if hasattr(sys, "monitoring")
        else [],
        "__main__.__loader__": type(__loader__).__name__,
        "sys.getswitchinterval()": sys.getswitchinterval(),
        "sys.meta_path": [getattr(finder, "__name__", type(finder).__name__) for finder in sys.meta_path],
        "sys.path_hooks": len(sys.path_hooks),
        "sys.path": sys.path,
        "sys.path_importer_cache": sorted(sys.path_importer_cache),
        "sys.argv": sys.argv,
        "sys.orig_argv": sys.orig_argv[1:],
        "sys.flags": repr(sys.flags),
        "sys.modules": sorted({name.partition(".")[0] for name in sys.modules}),
        "sys.gettrace(), sys.getprofile()": [repr(sys.gettrace()), repr(sys.getprofile())],
        "sys.getrecursionlimit()": sys.getrecursionlimit(),
        "sys.stdout, sys.stderr": [type(sys.stdout).__name__, type(sys.stderr).__name__],
        **{f"sys.{name}": getattr(sys, name) is getattr(sys, f"__{name}__") for name in HOOKS},
        "threading.excepthook": threading.excepthook is threading.__excepthook__,
        "threading.enumerate()": sorted(thread.name for thread in threading.enumerate()),
        "os.environ": dict(os.environ),
        "os.getcwd()": os.getcwd(),
        "umask": [os.umask(0o022), os.umask(0o022)],
        "open descriptors": descriptors(),
        "__main__": sorted(vars(sys.modules["__main__"])),
        "__main__.__spec__": repr(__spec__),
        "stack": [frame.name for frame in traceback.extract_stack()],
        "warnings.filters": [str(rule) for rule in warnings.filters],
        "warnings.showwarning": warnings.showwarning.__module__,
        "warnings registry": sorted(str(key) for key in globals().get("__warningregistry__", {})),
        "gc.isenabled()": gc.isenabled(),
        "gc.get_threshold()": gc.get_threshold(),
        "gc.callbacks": len(gc.callbacks),
        "gc.get_freeze_count()": gc.get_freeze_count(),
        "gc.get_debug()": gc.get_debug(),
        "atexit": atexit._ncallbacks(),
        "signal.getsignal()": {
            name: getattr(
                signal.getsignal(getattr(signal, name)), "__qualname__", signal.getsignal(getattr(signal, name))
            )
            for name in HANDLERS
        },
        "signal.set_wakeup_fd()": wakeup_descriptor(),
        "blocked signals": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, [])),
        "random": digest(random.getstate()),
        "locale": locale.setlocale(locale.LC_ALL),
        "logging": [len(logging.root.handlers), logging.root.level, logging.getLogger("torch").level],
    }


def wakeup_descriptor():
    """Return whether there is one."""
    descriptor = signal.set_wakeup_fd(-1)
    if descriptor != -1:
        signal.set_wakeup_fd(descriptor, warn_on_full_buffer=False)
    return descriptor != -1


def of_torch(torch):
    """Return what can be seen of torch."""
    functions = {path: attribute(torch, path) for path in PATCHED}
    module, optimizer = torch.nn.modules.module, sys.modules["torch.optim.optimizer"]
    return {
        "modules of torch": modules_of_torch(),
        "modes of torch": [
            len(sys.modules["torch.utils._python_dispatch"]._get_current_dispatch_mode_stack()),
            len(sys.modules["torch.overrides"]._get_current_function_mode_stack()),
            torch.autograd._profiler_enabled(),
            torch.get_float32_matmul_precision(),
            torch.multiprocessing.get_sharing_strategy(),
        ],
        "kinds of functions of torch": {
            path: [type(f).__name__, inspect.isfunction(f), inspect.isgeneratorfunction(f), callable(f)]
            for path, f in functions.items()
        },
        "pickles of functions of torch": {
            path: digest(or_none(pickle.dumps, f)) for path, f in functions.items() if "next" not in path
        },
        "random numbers of numpy": digest(sys.modules["numpy"].random.get_state()),
        "threads of torch": [torch.get_num_threads(), torch.get_num_interop_threads()],
        "deterministic": [torch.are_deterministic_algorithms_enabled(), torch.backends.cudnn.benchmark],
        "default dtype and device": [str(torch.get_default_dtype()), str(torch.get_default_device())],
        "grad mode": [torch.is_grad_enabled(), torch.is_inference_mode_enabled(), torch.is_anomaly_enabled()],
        "default generator": digest(torch.get_rng_state().tolist()),
        "hooks of all modules": [len(module._global_forward_hooks), len(module._global_forward_pre_hooks)],
        "hooks of all optimizers": [
            len(optimizer._global_optimizer_pre_hooks),
            len(optimizer._global_optimizer_post_hooks),
        ],
        "inspect.signature of torch": {
            path: str(or_none(inspect.signature, f)).partition(" object at ")[0] for path, f in functions.items()
        },
        "inspect.getsource of torch": {path: digest(or_none(inspect.getsource, f)) for path, f in functions.items()},
        "documentation of torch": {path: digest(f.__doc__) for path, f in functions.items()},
        "names of functions of torch": {
            path: f"{f.__module__}.{f.__qualname__}" for path, f in functions.items() if path not in ("Tensor.to",)
        },
        "files of functions of torch": {
            path: os.path.basename(f.__code__.co_filename) for path, f in functions.items() if hasattr(f, "__code__")
        },
    }


def modules_of_torch():
    """Return the imported modules of torch."""
    return sorted(name for name in sys.modules if name.partition(".")[0] == "torch")


def of_objects(**objects):
    """Return what can be seen of the objects of a training."""
    return {
        "references": {name: sys.getrefcount(value) for name, value in objects.items()},
        "weak references to models, loaders and optimizers": {
            name: weakref.getweakrefcount(value) for name, value in objects.items()
        },
        "classes": {name: [kind.__qualname__ for kind in type(value).__mro__] for name, value in objects.items()},
        "repr": {name: digest(repr(value)) for name, value in objects.items() if name != "loader"},
        "attributes": {name: sorted(vars(value)) for name, value in objects.items()},
        "names in dir()": {name: digest(dir(value)) for name, value in objects.items()},
        "size of the pickle": {name: len(or_none(pickle.dumps, value) or b"") for name, value in objects.items()},
        "size of the pickle of a copy": {
            name: len(or_none(pickle.dumps, copy.copy(value)) or b"") for name, value in objects.items()
        },
    }


def look(moment, torch=None):
    """Keep what can be seen now."""
    VIEWS[moment] = of_python() | ({} if torch is None else of_torch(torch))


random.seed(1)
look("at the start")
import torch  # noqa: E402
from torch.utils.data import DataLoader, TensorDataset  # noqa: E402

profile_section = lambda name: contextlib.nullcontext()  # noqa: E731
profile_step = lambda: None  # noqa: E731
if "VIEW_SECTIONS" in os.environ:
    from training_profiler import profile_section, profile_step, start_training_profiling

    start_training_profiling(stream="stderr")
torch.manual_seed(1)
sys.modules["numpy"].random.seed(1)
look("after the import of torch", torch)


class Rows(TensorDataset):
    """A data set that keeps the stack around it."""

    def __getitem__(self, index):
        """Return a row."""
        STACKS["data set"] = stack()
        return super().__getitem__(index)


class Layer(torch.nn.Linear):
    """A layer that keeps the stacks around it."""

    def forward(self, x):
        """Return the product."""
        STACKS["forward pass"], STACKS["depth"] = stack(), depth()
        out = super().forward(x)
        out.register_hook(lambda gradient: STACKS.update(backward=stack()))
        return out


def stack():
    """Return the names of the functions around the caller."""
    return [frame.name for frame in traceback.extract_stack()]


STACKS = {}
model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Dropout(0.5), Layer(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loader = DataLoader(Rows(torch.rand(64, 4)), batch_size=4, shuffle=True)
losses = []
for _ in range(3):
    for (batch,) in loader:
        optimizer.zero_grad()
        with profile_section("forward_pass"):
            prediction = model(batch)
        loss = prediction.square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        profile_step()
look("in the training", torch)
VIEWS["in the training"]["losses"] = losses
VIEWS["in the training"]["depth of recursion in torch"] = STACKS.pop("depth")
VIEWS["in the training"]["stacks around torch's calls"] = STACKS
VIEWS["in the training"] |= of_objects(
    model=model, optimizer=optimizer, loader=loader, batch=batch, loss=loss, weight=model[0].weight
)
with open(sys.argv[1], "w") as file:
    json.dump(VIEWS, file, indent=1)
