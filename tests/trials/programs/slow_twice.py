"""A training with two planted costs: a dataset that waits for each sample, and an optimizer of many small tensors.

It writes a file that must not stay.
"""

import sys
import time
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

import tests.chaos.programs.without_dynamo  # noqa: F401

STEPS, BATCH, TENSORS = 80, 16, 400


class Samples(Dataset):
    def __init__(self, steps: int) -> None:
        self.steps = steps

    def __len__(self) -> int:
        return self.steps * BATCH

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        time.sleep(0.0015)  # as for a disk
        return torch.full((8,), float(index % 7)), torch.tensor([float(index % 3)])


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 1)
        self.weights = nn.ParameterList(torch.randn(4) / 100 for _ in range(TENSORS))

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        return self.layer(features) + torch.stack(list(self.weights)).sum()


def main() -> None:
    steps = int(sys.argv[1]) if len(sys.argv) > 1 else STEPS
    torch.manual_seed(0)
    torch.set_num_threads(1)
    loader = DataLoader(Samples(steps), batch_size=BATCH, shuffle=True)
    model = Net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, foreach=False)
    for features, targets in loader:
        loss = nn.functional.mse_loss(model(features), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        Path("checkpoint.txt").write_text(f"{loss.item():.4f}")


if __name__ == "__main__":
    main()
