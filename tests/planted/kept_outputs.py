"""Outputs without graphs are kept; or (small) their means; or (fixed) numbers; or (replay) the last outputs."""

import sys
from collections import deque

import torch
from torch import nn


class Log:
    def __init__(self, most: int | None) -> None:
        self.outputs: deque[torch.Tensor | float] = deque(maxlen=most)


def main(*arguments: str) -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    log = Log(1000 if "replay" in arguments else None)
    for _ in range(700):
        output = model(torch.randn(256, 64))
        optimizer.zero_grad()
        output.square().mean().backward()
        optimizer.step()
        mean = output.detach().mean()
        kept = mean.item() if "fixed" in arguments else mean if "small" in arguments else output.detach()
        log.outputs.append(kept)


if __name__ == "__main__":
    main(*sys.argv[1:])
