"""A training of 20 steps that prints its losses, and nothing that a profiler changes; its arguments vary how it ends.

``small_training.py [WORKERS]``: processes of its data loader.
"""

import sys

import torch
import without_dynamo  # noqa: F401
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def warm_up() -> None:
    """Import what torch imports late, which takes long under a trace function."""
    torch.optim.SGD([torch.zeros(1, requires_grad=True)], 0.05)


def train(workers: int = 0, method: str | None = None) -> list[float]:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    x, y = torch.randn(80, 8), torch.randn(80, 1)
    loader = DataLoader(TensorDataset(x, y), 8, shuffle=True, num_workers=workers, multiprocessing_context=method)
    model, criterion = nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.1), nn.ReLU(), nn.Linear(16, 1)), nn.MSELoss()
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    losses = []
    for _ in range(2):
        for rows, targets in loader:
            optimizer.zero_grad()
            loss = criterion(model(rows), targets)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    return losses


def main() -> None:
    workers, method = (int(sys.argv[1]), sys.argv[2]) if len(sys.argv) > 2 else (0, None)
    losses = train(workers, method)
    print(len(losses), *losses)


if __name__ == "__main__":
    main()
