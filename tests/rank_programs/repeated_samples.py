"""Two ranks without a ``DistributedSampler``: each trains on all samples.

The arguments are other programs: ``shuffled`` gives each rank an order of its own, ``divided`` is the fixed one,
``constant`` trains on one batch that each rank has, as a benchmark does, and ``split`` gives each rank other features
of the same samples.
"""

import json
import sys
import time

import torch
from torch import distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

EPOCHS, SAMPLES, BATCH = 3, 960, 16


def main() -> None:
    how = sys.argv[1] if len(sys.argv) > 1 else ""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(SAMPLES, 64, generator=generator)
    data = TensorDataset(features, torch.randint(10, (SAMPLES,), generator=generator), torch.arange(SAMPLES))
    order = torch.Generator().manual_seed(rank if how == "shuffled" else 0)
    sampler = DistributedSampler(data) if how == "divided" else None
    loader = DataLoader(data, BATCH, shuffle=sampler is None, sampler=sampler, generator=order)
    width = 32 if how == "split" else 64
    model = DistributedDataParallel(nn.Sequential(nn.Linear(width, 512), nn.ReLU(), nn.Linear(512, 10)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    steps, seen = 0, set()
    for epoch in range(EPOCHS):
        if sampler is not None:
            sampler.set_epoch(epoch)
        for inputs, targets, numbers in loader:
            if how == "constant":
                inputs, targets, numbers = features[:BATCH], data.tensors[1][:BATCH], torch.arange(BATCH)
            elif how == "split":
                inputs = inputs[:, 32 * rank : 32 * rank + 32]
            if epoch == 0:
                seen.update(numbers.tolist())
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(inputs), targets).backward()
            optimizer.step()
            steps += 1
    both: list[set[int]] = [set(), set()]
    dist.all_gather_object(both, seen)
    if rank == 0:
        print("TRUTH", json.dumps({"steps": steps, "times": (len(both[0]) + len(both[1])) / len(both[0] | both[1])}))
    # Gloo of torch 2.13 can deadlock if its group is destroyed while its thread releases the last collective.
    time.sleep(0.2)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
