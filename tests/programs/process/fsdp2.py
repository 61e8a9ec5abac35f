"""FSDP2 on two ranks: collectives gather parameters and reduce gradients. The counts are of rank 0."""

import os
import time

import torch
from _tiny import EVALUATION, STEP, counts, examples, net, show, truth
from torch import distributed as dist
from torch.distributed.fsdp import fully_shard
from torch.nn import functional as F
from torch.utils.data import DataLoader, DistributedSampler

COLLECTIVES = "synchronization+validation_epoch/synchronization"
count = counts("validation_epoch/data_loading", "validation_epoch/forward_pass", COLLECTIVES)


def counted(collective):
    def call(*args, **kwargs):
        count[COLLECTIVES] += 1
        return collective(*args, **kwargs)

    return call


# FSDP decides how often it gathers parameters and reduces gradients.
for name in ("all_gather_single", "all_gather_into_tensor", "reduce_scatter_single", "reduce_scatter_tensor"):
    if hasattr(dist, name):
        setattr(dist, name, counted(getattr(dist, name)))
dist.init_process_group("gloo")
rank = int(os.environ["RANK"])
data, val_data = examples(80), examples(32)
model = net()
for layer in (model[0], model[2]):
    fully_shard(layer)
fully_shard(model)
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(2):
    for inputs, targets in DataLoader(data, batch_size=4, sampler=DistributedSampler(data)):
        loss = F.cross_entropy(model(inputs), targets)
        loss.backward()
        optimizer.step()
        count.update(STEP)
        optimizer.zero_grad()
        if rank == 0:
            show(loss)
    total = torch.zeros(1)
    with torch.no_grad():
        for inputs, targets in DataLoader(val_data, batch_size=8, sampler=DistributedSampler(val_data)):
            total += F.cross_entropy(model(inputs), targets)
            count.update(EVALUATION)
    counted(dist.all_reduce)(total)
    if rank == 0:
        show(total)
if rank == 0:
    truth(count)
# Gloo of torch 2.13 can deadlock if its group is destroyed while its thread releases the last collective.
time.sleep(0.2)
dist.destroy_process_group()
