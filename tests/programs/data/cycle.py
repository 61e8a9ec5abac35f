"""A generator that repeats the loader for ever, and accumulation: the trainers of many diffusion repositories."""

import torch
from _tiny import counts, examples, net, show, truth
from torch.nn import functional as F
from torch.utils.data import DataLoader

ACCUMULATE_EVERY = 2


def cycle(loader):
    while True:
        yield from loader


count = counts("metrics_computation")
model = net()
optimizer = torch.optim.Adam(model.parameters(), betas=(0.9, 0.99))
batches = cycle(DataLoader(examples(40), batch_size=8, shuffle=True))
for _step in range(9):
    model.train()
    total = 0.0
    for _ in range(ACCUMULATE_EVERY):
        inputs, targets = next(batches)
        count["data_loading"] += 1
        loss = F.cross_entropy(model(inputs), targets) / ACCUMULATE_EVERY
        count["forward_pass"] += 1
        total += loss.item()
        loss.backward()
        count["backward_pass"] += 1
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    count["metrics_computation"] += 1
    optimizer.step()
    count["steps"] += 1
    optimizer.zero_grad()
    print("loss", total.hex())
    show(loss)
truth(count)
