"""A recurrent cell whose orthogonal weight is computed at each step of a sequence; once for all with ``--cached``."""

import json
import sys
import time
from contextlib import nullcontext

import torch
from torch import nn
from torch.nn.utils import parametrizations, parametrize

STEPS = 60


class Cell(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.read, self.last = nn.Linear(16, 48), nn.Linear(48, 10)
        self.turn = parametrizations.orthogonal(nn.Linear(48, 48, bias=False))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        state = x.new_zeros(x.shape[0], 48)
        for each in x.unbind(1):
            state = torch.tanh(self.read(each) + self.turn(state))
        return self.last(state)


def main() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = Cell()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    began_s = time.process_time()
    for _ in range(STEPS):
        with parametrize.cached() if "--cached" in sys.argv else nullcontext():
            loss = nn.functional.cross_entropy(model(torch.randn(32, 8, 16)), torch.randint(10, (32,)))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print("TRUTH", json.dumps({"cpu_s": time.process_time() - began_s, "loss": loss.item()}))


if __name__ == "__main__":
    main()
