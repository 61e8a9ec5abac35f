"""A training with DistributedDataParallel whose second rank is the slower one."""

import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import tests.chaos.programs.without_dynamo  # noqa: F401

STEPS, SLEEP_S = 100, 0.02


def main() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    model = DistributedDataParallel(nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(STEPS):
        features = torch.randn(16, 8)
        loss = nn.functional.mse_loss(model(features), features.sum(1, keepdim=True))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        time.sleep(SLEEP_S * (1 + rank))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
