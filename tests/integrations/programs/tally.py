"""Counts that a training keeps of itself; this module touches nothing that a profiler would patch."""

import json
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch.utils.data import Dataset, default_collate


@dataclass
class Tally:
    """Counts of one training. ``elsewhere`` holds further counts by section name."""

    steps: int = 0
    data_loading: int = 0
    forward_pass: int = 0
    backward_pass: int = 0
    elsewhere: dict[str, int] = field(default_factory=dict)

    def forward(self) -> None:
        """Count a forward of the root model; call it first in ``forward``."""
        if torch.is_grad_enabled():
            self.forward_pass += 1
        else:
            self.add("validation_epoch/forward_pass")

    def backward(self, *_: Any) -> None:
        """Count a backward."""
        self.backward_pass += 1

    def watch(self, loss: torch.Tensor) -> torch.Tensor:
        """Return ``loss`` and count each backward from it."""
        if loss.requires_grad:
            loss.register_hook(self.backward)
        return loss

    def collate(self, items: list[Any]) -> Any:
        """Return the batch of a training loader, counted."""
        self.data_loading += 1
        return default_collate(items)

    def collate_for_evaluation(self, items: list[Any]) -> Any:
        """Return the batch of a loader that only evaluates, counted."""
        self.add("validation_epoch/data_loading")
        return default_collate(items)

    def add(self, name: str, by: int = 1) -> None:
        """Count ``by`` more spans of section ``name``."""
        self.elsewhere[name] = self.elsewhere.get(name, 0) + by

    def print(self, *unclear: str) -> None:
        """Print the line of counts, without those named in ``unclear``."""
        counts = asdict(self)
        counts.update(counts.pop("elsewhere"))
        print("TRUTH", json.dumps({name: count for name, count in counts.items() if name not in unclear}))


def updates(optimizer: torch.optim.Optimizer) -> int:
    """Return the number of updates in the state of an Adam-like optimizer."""
    return max(int(state["step"]) for state in optimizer.state.values())


class Points(Dataset):  # type: ignore[type-arg]
    """Points in a plane, each in one of two classes."""

    def __init__(self, count: int, seed: int = 0) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.inputs = torch.randn(count, 2, generator=generator)
        self.targets = (self.inputs.prod(1) > 0).long()

    def __len__(self) -> int:
        return len(self.targets)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self.inputs[index], self.targets[index]


class Classifier(torch.nn.Module):
    """A small network for ``Points`` that counts its own forwards."""

    def __init__(self, tally: Tally) -> None:
        super().__init__()
        self.tally = tally
        self.hidden = torch.nn.Linear(2, 16)
        self.dropout = torch.nn.Dropout(0.1)
        self.head = torch.nn.Linear(16, 2)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        self.tally.forward()
        return self.head(self.dropout(self.hidden(inputs).relu()))
