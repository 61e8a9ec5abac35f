"""DistributedDataParallel under torchrun. The counts are rank 0's."""

import os
import time

import torch
from _tiny import counts, examples, net, show, truth
from torch import distributed as dist
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

count = counts("validation_epoch/data_loading", "synchronization")
dist.init_process_group("gloo")
rank = int(os.environ["RANK"])
data, val_data = examples(80), examples(32)
model = DistributedDataParallel(net())
optimizer = torch.optim.AdamW(model.parameters())
sampler = DistributedSampler(data)
for epoch in range(2):
    sampler.set_epoch(epoch)
    for i, (inputs, targets) in enumerate(DataLoader(data, batch_size=4, sampler=sampler)):
        count["data_loading"] += 1
        update = i % 2 == 1
        model.require_backward_grad_sync = update
        loss = F.cross_entropy(model(inputs), targets) / 2
        count["forward_pass"] += 1
        loss.backward()
        count["backward_pass"] += 1
        if update:
            optimizer.step()
            count["steps"] += 1
            count["synchronization"] += 1  # of gradients, by DDP
            optimizer.zero_grad()
        if rank == 0:
            show(loss)
    total = torch.zeros(1)
    with torch.no_grad():
        for inputs, targets in DataLoader(val_data, batch_size=8, sampler=DistributedSampler(val_data)):
            count["validation_epoch/data_loading"] += 1
            total += F.cross_entropy(model(inputs), targets)
    dist.all_reduce(total)
    count["synchronization"] += 1
    if rank == 0:
        show(total)
if rank == 0:
    count["synchronization"] -= 1  # DDP says of an exchange what it was when the next forward pass begins
    truth(count)
# Gloo of torch 2.13 can lock up where its group goes while its thread still lets go of the last collective.
time.sleep(0.2)
dist.destroy_process_group()
