"""Manual averaging of gradients, and collectives of every kind, synchronous and asynchronous. Counts are of rank 0."""

import os
import time
from datetime import timedelta

import torch
from _tiny import counts, examples, net, show, truth
from torch import distributed as dist
from torch.distributed import _functional_collectives as functional
from torch.distributed import all_reduce
from torch.nn import functional as F
from torch.utils.data import DataLoader, DistributedSampler

count = counts("synchronization")
dist.init_process_group("gloo", timeout=timedelta(seconds=60))
rank = int(os.environ["RANK"])
data = examples(80)
model = net()
optimizer = torch.optim.AdamW(model.parameters())


def average_gradients():
    """Start all, then wait for all."""
    works = [all_reduce(parameter.grad, async_op=True) for parameter in model.parameters()]
    for work, parameter in zip(works, model.parameters(), strict=True):
        work.wait()
        count["synchronization"] += 1
        parameter.grad /= 2


def exchange_losses(loss):
    """Send to the other rank in every way there is."""
    mine, other = loss.detach().reshape(1), torch.zeros(1)
    if rank == 0:
        dist.send(mine, 1)
        dist.recv(other, 1)
    else:
        dist.recv(other, 0)
        dist.send(mine, 0)
    works = [dist.isend(mine, 1 - rank), dist.irecv(other, 1 - rank)]
    batch = [dist.P2POp(dist.isend, mine, 1 - rank), dist.P2POp(dist.irecv, other, 1 - rank)]
    for work in (*works, *dist.batch_isend_irecv(batch)):
        work.wait()
    losses = [torch.zeros(1), torch.zeros(1)]
    dist.all_gather(losses, mine)
    objects = [None, None]
    dist.all_gather_object(objects, mine.item())
    dist.broadcast(other, 0)
    dist.barrier()
    count["synchronization"] += 2 + 4 + 4
    total = functional.all_reduce(mine, "sum", dist.group.WORLD) / 2  # waits where it is used
    count["synchronization"] += 1
    return total


for _ in range(2):
    for inputs, targets in DataLoader(data, batch_size=4, sampler=DistributedSampler(data)):
        count["data_loading"] += 1
        loss = F.cross_entropy(model(inputs), targets)
        count["forward_pass"] += 1
        loss.backward()
        count["backward_pass"] += 1
        average_gradients()
        try:
            dist.scatter(torch.zeros(1), None, src=rank)
        except ValueError:  # an error on each rank before it sends anything
            count["synchronization"] += 1
        optimizer.step()
        count["steps"] += 1
        optimizer.zero_grad()
        mean = exchange_losses(loss)
        if rank == 0:
            show(mean)
if rank == 0:
    truth(count)
# Gloo of torch 2.13 can deadlock if its group is destroyed while its thread releases the last collective.
time.sleep(0.2)
dist.destroy_process_group()
