"""A training whose steps take a quarter of a millisecond: ``python tiny_training.py BATCH BLOCK_STEPS``."""

import sys

import torch
from torch import nn

from benchmarks.turns import Turns


def make() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))


def main(batch: int, block_steps: int) -> None:
    turns = Turns(block_steps)
    model = make()
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    criterion = nn.MSELoss()
    x_BF, y_B1 = torch.randn(batch, 8), torch.randn(batch, 1)
    goes_on = True
    while goes_on:
        optimizer.zero_grad()
        loss = criterion(model(x_BF), y_B1)
        loss.backward()
        optimizer.step()
        goes_on = turns.after_step()
    print(f"loss {loss.item():.4f}")


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
