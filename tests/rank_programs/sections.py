"""A training with manual sections that differ between ranks; no data loader, no DistributedDataParallel."""

import time

import torch
import torch.distributed as dist
from torch import nn

from training_profiler import profile_section, profile_step, start_training_profiling

STEPS = 30


def main() -> None:
    start_training_profiling()
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    rank = dist.get_rank()
    model = nn.Linear(64, 64)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(STEPS):
        with profile_section("forward_pass"):
            loss = model(torch.ones(64, 64)).square().mean()
        with profile_section("backward_pass"):
            loss.backward()
        with profile_section("synchronization"):
            for parameter in model.parameters():
                dist.all_reduce(parameter.grad)
        if rank == 1:
            with profile_section("only_here"):
                torch.ones(100).sum()
        with profile_section("optimizer_step"):
            optimizer.step()
        profile_step()
    print(f"rank {rank} is through", flush=True)
    # Gloo of torch 2.13 can deadlock if its group is destroyed while its thread releases the last collective.
    time.sleep(0.2)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
