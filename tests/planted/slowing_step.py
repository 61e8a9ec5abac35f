"""A running mean over all values so far, recomputed each step from a growing list."""

import torch
from torch import nn


def main() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = nn.Sequential(nn.Linear(128, 256), nn.ReLU(), nn.Linear(256, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    history: list[float] = []
    for _ in range(300):
        loss = nn.functional.cross_entropy(model(torch.randn(128, 128)), torch.randint(10, (128,)))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        history += loss.detach().expand(2000).tolist()
        mean = sum(value * value for value in history) / len(history)
    print(f"{mean:.4f}")


if __name__ == "__main__":
    main()
