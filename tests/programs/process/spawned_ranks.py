"""Two ranks started by torch.multiprocessing.spawn; gradients are averaged by hand. The counts are rank 0's."""

import os
import pathlib
import time

import torch
from _tiny import counts, examples, net, show, truth
from torch import distributed as dist
from torch import multiprocessing as mp
from torch.nn import functional as F
from torch.utils.data import DataLoader, DistributedSampler


def main(rank, world_size):
    dist.init_process_group("gloo", init_method=f"file://{os.getcwd()}/store", rank=rank, world_size=world_size)
    count = counts("synchronization")
    torch.manual_seed(0)
    data, model = examples(80), net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    sampler = DistributedSampler(data)
    loader = DataLoader(data, batch_size=8, sampler=sampler)
    for epoch in range(2):
        sampler.set_epoch(epoch)
        for inputs, targets in loader:
            count["data_loading"] += 1
            optimizer.zero_grad()
            loss = F.cross_entropy(model(inputs), targets)
            count["forward_pass"] += 1
            loss.backward()
            count["backward_pass"] += 1
            for p in model.parameters():
                dist.all_reduce(p.grad)
                count["synchronization"] += 1
                p.grad /= world_size
            optimizer.step()
            count["steps"] += 1
            if rank == 0:
                show(loss)
        dist.barrier()
        count["synchronization"] += 1
    if rank == 0:
        truth(count)
    # Gloo of torch 2.13 can lock up where its group goes while its thread still lets go of the last collective.
    time.sleep(0.2)
    dist.destroy_process_group()


if __name__ == "__main__":
    mp.spawn(main, args=(2,), nprocs=2)
    pathlib.Path("store").unlink(missing_ok=True)  # whether torch does depends on which rank is the last to end
