"""Batches from a queue that a thread of the program fills, slower than the training uses them."""

import queue
import threading
import time
from collections.abc import Iterator

import torch
from torch import nn

STEPS = 150


def batches() -> Iterator[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    for _ in range(STEPS):
        time.sleep(0.02)
        yield torch.randn(64, 64, generator=generator)


def fill(batches_ahead: "queue.Queue[torch.Tensor]") -> None:
    for inputs in batches():
        batches_ahead.put(inputs)


def main() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 8))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    batches_ahead: queue.Queue[torch.Tensor] = queue.Queue(maxsize=4)
    threading.Thread(target=fill, args=(batches_ahead,), daemon=True).start()
    for _ in range(STEPS):
        inputs = batches_ahead.get()
        optimizer.zero_grad()
        model(inputs).square().mean().backward()
        optimizer.step()


if __name__ == "__main__":
    main()
