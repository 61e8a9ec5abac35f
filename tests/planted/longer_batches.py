"""Batches of sequences that are eight times as long from one step on."""

import torch
from torch import nn

STEPS, SINCE = 300, 150


def main() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = nn.Sequential(nn.Linear(128, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 8))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(STEPS):
        sequences = torch.randn(16, 8 if step < SINCE else 64, 128)
        optimizer.zero_grad()
        model(sequences).square().mean().backward()
        optimizer.step()


if __name__ == "__main__":
    main()
