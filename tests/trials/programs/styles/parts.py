"""What the programs beside this file train: a dataset that waits, a model of many small tensors."""

import time

import torch
from torch import nn
from torch.utils.data import Dataset

BATCH = 16


class Samples(Dataset):
    """Waits for each sample, as for a disk."""

    def __init__(self, steps: int) -> None:
        self.steps = steps

    def __len__(self) -> int:
        return self.steps * BATCH

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        time.sleep(0.0015)
        return torch.full((8,), float(index % 7)), torch.tensor([float(index % 3)])


class Net(nn.Module):
    """Has a layer, and many small tensors for the optimizer."""

    def __init__(self, tensors: int) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 1)
        self.weights = nn.ParameterList(torch.randn(4) / 100 for _ in range(tensors))

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        return self.layer(features) + torch.stack(list(self.weights)).sum()
