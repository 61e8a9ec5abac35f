"""A model that builds its positions and its mask in each forward pass; once with ``--kept``, not alike ``--noisy``."""

import json
import math
import sys
import time

import torch
from torch import nn

STEPS, LENGTH, WIDTH = 60, 48, 32


def positions(length: int, width: int) -> torch.Tensor:
    table = torch.zeros(length, width)
    for at in range(length):
        for i in range(0, width, 2):
            table[at, i] = math.sin(at / 10_000 ** (i / width))
            table[at, i + 1] = math.cos(at / 10_000 ** (i / width))
    return table


def noise(length: int, width: int) -> torch.Tensor:
    table = torch.zeros(length, width)
    for at in range(length):
        for i in range(0, width, 2):
            table[at, i : i + 2] = torch.randn(2)
    return table


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.last = nn.Embedding(100, WIDTH), nn.Linear(WIDTH, 100)
        self.attention = nn.MultiheadAttention(WIDTH, 4, batch_first=True)
        self.register_buffer("table", positions(LENGTH, WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if "--noisy" in sys.argv:
            table = noise(x.shape[1], WIDTH)
        else:
            table = self.table if "--kept" in sys.argv else positions(x.shape[1], WIDTH)
        hidden = self.tokens(x) + table
        return self.last(self.attention(hidden, hidden, hidden, need_weights=False)[0])


def main() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    began_s = time.process_time()
    for _ in range(STEPS):
        x = torch.randint(100, (16, LENGTH))
        loss = nn.functional.cross_entropy(model(x).flatten(0, 1), x.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print("TRUTH", json.dumps({"cpu_s": time.process_time() - began_s, "loss": loss.item()}))


if __name__ == "__main__":
    main()
