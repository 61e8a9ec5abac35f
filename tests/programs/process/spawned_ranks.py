"""Two ranks of torch.multiprocessing.spawn with manual averaging of gradients. The counts are of rank 0."""

import os
import pathlib
import time

import torch
from _tiny import STEP, counts, examples, net, show, truth
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
            optimizer.zero_grad()
            loss = F.cross_entropy(model(inputs), targets)
            loss.backward()
            for p in model.parameters():
                dist.all_reduce(p.grad)
                count["synchronization"] += 1
                p.grad /= world_size
            optimizer.step()
            count.update(STEP)
            if rank == 0:
                show(loss)
        dist.barrier()
        count["synchronization"] += 1
    if rank == 0:
        truth(count)
    # Gloo of torch 2.13 can deadlock if its group is destroyed while its thread releases the last collective.
    time.sleep(0.2)
    dist.destroy_process_group()


if __name__ == "__main__":
    mp.spawn(main, args=(2,), nprocs=2)
    pathlib.Path("store").unlink(missing_ok=True)  # whether torch removes it depends on which rank ends last
