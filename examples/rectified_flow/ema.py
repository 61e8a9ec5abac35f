"""The exponential moving average of a model's weights."""

import copy

import torch
from torch import nn


class MovingAverage:
    """A copy of a model whose weights follow the model's slowly."""

    def __init__(self, model: nn.Module, decay: float = 0.995) -> None:
        self.model = copy.deepcopy(model).eval().requires_grad_(False)
        self.decay = decay

    @torch.no_grad()
    def update(self, model: nn.Module) -> None:
        """Move the average a little towards ``model``, all parameters in one call."""
        own, theirs = list(self.model.parameters()), [p.detach() for p in model.parameters()]
        torch._foreach_lerp_(own, theirs, 1 - self.decay)
