"""Two ranks and a detail of DDP or of their data, by the arguments; each has another program that only looks alike.

``searching`` looks for unused parameters and has none, ``used`` has some on rank 1. ``longer`` gives rank 1 batches
three times as large, ``slower`` more work. ``averaging`` averages the gradients of each of four batches of an update,
``accumulating`` those of the last one.
"""

import sys
import time
from contextlib import nullcontext

import torch
from torch import distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


class Model(nn.Module):
    def __init__(self, count: int) -> None:
        super().__init__()
        layers = [nn.Sequential(nn.Linear(64, 64), nn.ReLU()) for _ in range(count)]
        self.layers = nn.Sequential(*layers, nn.Linear(64, 10))
        self.other = nn.Linear(64, 10)

    def forward(self, inputs: torch.Tensor, is_other: bool) -> torch.Tensor:
        hidden = self.layers(inputs)
        return hidden if is_other else hidden + self.other(inputs)


def main() -> None:
    how = sys.argv[1]
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    searches = how in ("searching", "used")
    model = DistributedDataParallel(Model(400 if searches else 100), find_unused_parameters=searches)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    batches = 4 if how in ("averaging", "accumulating") else 1
    inputs = torch.randn(600 if how == "longer" and rank else 100 if searches else 200, 64)
    for _ in range(40):
        for batch in range(batches):
            with model.no_sync() if how == "accumulating" and batch < batches - 1 else nullcontext():
                outputs = model(inputs, is_other=how == "used" and rank == 1)
                for _ in range(2 if how == "slower" and rank else 0):
                    outputs = outputs + model.module.layers(inputs) / 100
                (outputs.square().mean() / batches).backward()
        optimizer.step()
        optimizer.zero_grad()
    # Gloo of torch 2.13 can deadlock if its group is destroyed while its thread releases the last collective.
    time.sleep(0.2)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
