"""A training that waits for its data: each picture takes 3 ms to draw, in the training process.

RECTIFIED_FLOW_PROFILE=1 python -m examples.slow_loader
RECTIFIED_FLOW_PROFILE=1 python -m examples.slow_loader --num-workers 1
"""

import argparse
import time

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

EPOCHS, BATCH_SIZE, CLASSES, SIDE = 3, 8, 10, 8
DRAWING_S = 0.003


class Pictures(Dataset[tuple[Tensor, int]]):
    """Pictures of ``SIDE`` x ``SIDE`` that are drawn when they are asked for."""

    def __init__(self, count: int) -> None:
        self._count = count

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, number: int) -> tuple[Tensor, int]:
        return draw(number), number % CLASSES


def draw(number: int) -> Tensor:
    """Return the picture of a number, after as much CPU time as decoding a photograph takes."""
    ends_s = time.perf_counter() + DRAWING_S
    picture = torch.full((SIDE, SIDE), number / 1000)
    while time.perf_counter() < ends_s:
        picture = picture.roll(1, dims=0)
    return picture


def main() -> None:
    """Train a small network, and print the last loss."""
    parser = argparse.ArgumentParser(description="Train on pictures that are slow to make.")
    parser.add_argument("--num-workers", type=int, default=0, help="processes that draw pictures; 0 for none")
    parser.add_argument("--pictures", type=int, default=1200, help="pictures an epoch")
    arguments = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = nn.Sequential(nn.Flatten(), nn.Linear(SIDE**2, 1200), nn.ReLU(), nn.Linear(1200, 1200), nn.ReLU())
    model.append(nn.Linear(1200, CLASSES))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    loader = DataLoader(
        Pictures(arguments.pictures),
        batch_size=BATCH_SIZE,
        shuffle=True,
        num_workers=arguments.num_workers,
        persistent_workers=arguments.num_workers > 0,
    )
    loss = torch.zeros(())
    for _ in range(EPOCHS):
        for pictures, labels in loader:
            loss = nn.functional.cross_entropy(model(pictures), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    print(f"loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
