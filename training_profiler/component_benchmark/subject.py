"""The subject of a benchmark: a model, its input, its loss and its optimizer."""

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import nn
from torch.nn.functional import cross_entropy, mse_loss

from training_profiler.base.errors import BenchmarkError

LEARNING_RATE = 1e-6  # hundreds of updates barely change the model


@dataclasses.dataclass(frozen=True)
class Subject:
    """A model with everything that a training step needs."""

    source: str
    model: nn.Module
    arguments: tuple[Any, ...]
    keywords: Mapping[str, Any]
    loss: Callable[..., Any] | None = None
    target: Any = None
    optimizer: torch.optim.Optimizer | None = None

    def forward(self) -> Any:
        """Return the output of the model for its input."""
        return self.model(*self.arguments, **self.keywords)

    def loss_of(self, output: Any) -> torch.Tensor | None:
        """Return the loss as a scalar, or None if no output has a gradient.

        Raises:
            BenchmarkError: The loss is not a scalar, or no known loss fits the target.
        """
        if self.loss is not None:
            loss = self.loss(output) if self.target is None else self.loss(output, self.target)
        elif self.target is not None:
            loss = _loss_against(output, self.target)
        else:
            return sum_of_means(output)
        if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
            given = f"a tensor of shape {tuple(loss.shape)}" if isinstance(loss, torch.Tensor) else repr(loss)
            raise BenchmarkError(
                f"the loss of {self.source} is {given[:80]}; expected a scalar tensor, "
                "example: return model, images, lambda output: output.mean()"
            )
        return loss

    @property
    def loss_in_words(self) -> str:
        """Return the name of the loss."""
        if self.loss is not None:
            return getattr(self.loss, "__name__", type(self.loss).__name__)
        if self.target is None:
            return "sum of the outputs' means"
        return "mean squared error" if self.target.is_floating_point() else "cross entropy"

    def make_optimizer(self) -> torch.optim.Optimizer:
        """Return the given optimizer, or AdamW."""
        if self.optimizer is not None:
            return self.optimizer
        trained = [p for p in self.model.parameters() if p.requires_grad]
        return torch.optim.AdamW(trained, lr=LEARNING_RATE)


def tensors_in(value: Any) -> Iterator[torch.Tensor]:
    """Yield the tensors in nested tuples, lists, mappings and dataclasses."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, Mapping):
        for inner in value.values():
            yield from tensors_in(inner)
    elif isinstance(value, (tuple, list)):
        for inner in value:
            yield from tensors_in(inner)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for field in dataclasses.fields(value):
            yield from tensors_in(getattr(value, field.name))


def sum_of_means(output: Any) -> torch.Tensor | None:
    """Return the sum of the means of all outputs that have a gradient, or None."""
    means = [tensor.mean() for tensor in tensors_in(output) if tensor.requires_grad and tensor.is_floating_point()]
    return torch.stack([mean.float() for mean in means]).sum() if means else None


def _loss_against(output: Any, target: torch.Tensor) -> torch.Tensor:
    (*_, out) = [None, *tensors_in(output)][:2]
    if out is not None and target.is_floating_point() and out.shape == target.shape:
        return mse_loss(out, target)
    if out is not None and not target.is_floating_point():
        if out.shape[:-1] == target.shape:  # classes last, as language models have them
            return cross_entropy(out.reshape(-1, out.shape[-1]), target.reshape(-1).long())
        if out.shape[:1] + out.shape[2:] == target.shape:
            return cross_entropy(out, target.long())
    shape = "no tensor" if out is None else f"shape {tuple(out.shape)}"
    raise BenchmarkError(
        f"the target has shape {tuple(target.shape)} and type {target.dtype}, the output {shape}: neither cross "
        "entropy nor mean squared error fits; return a loss as well, "
        "example: return model, images, labels, torch.nn.MultiMarginLoss()"
    )
