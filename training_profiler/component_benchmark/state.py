"""Restores a model, its gradients and the random number generators after any code."""

import copy
import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from training_profiler.tables.backends import ready_backends


@contextmanager
def kept(model: nn.Module, optimizer: torch.optim.Optimizer | None = None) -> Iterator[None]:
    """Restore parameters, buffers, gradients, the optimizer's state and random number generators afterwards."""
    values = [(tensor, tensor.detach().clone()) for tensor in _tensors(model) if not is_lazy(tensor)]
    buffers = [(module, dict(module._buffers)) for module in model.modules()]  # a module may replace a buffer
    gradients = [(parameter, parameter.grad) for parameter in model.parameters()]
    optimizer_state = copy.deepcopy(optimizer.state_dict()) if optimizer is not None else None
    generators = _generators()
    for parameter, _ in gradients:
        parameter.grad = None
    try:
        yield
    finally:
        for module, own in buffers:
            module._buffers.update(own)
        with torch.no_grad():
            for tensor, before in values:
                tensor.copy_(before)
        for parameter, gradient in gradients:
            parameter.grad = gradient
        if optimizer is not None and optimizer_state is not None:
            optimizer.load_state_dict(optimizer_state)
        _restore(generators)


def _tensors(model: nn.Module) -> Iterator[torch.Tensor]:
    yield from model.parameters()
    yield from model.buffers()


def _generators() -> dict[str, Any]:
    numpy = sys.modules.get("numpy")
    return {
        "cpu": torch.get_rng_state(),
        "devices": {
            ready.kind: ready.module.get_rng_state_all()
            for ready in ready_backends(torch)
            if hasattr(ready.module, "get_rng_state_all")
        },
        "python": random.getstate(),
        "numpy": numpy.random.get_state() if numpy is not None else None,
    }


def _restore(states: dict[str, Any]) -> None:
    torch.set_rng_state(states["cpu"])
    for kind, of_devices in states["devices"].items():
        getattr(torch, kind).set_rng_state_all(of_devices)
    random.setstate(states["python"])
    if states["numpy"] is not None:
        sys.modules["numpy"].random.set_state(states["numpy"])
