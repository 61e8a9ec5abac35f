"""Batches of two loaders go into each step; the loader that is asked first is the longer one."""

import torch
from _tiny import counts, examples, net, show, truth
from torch.nn import functional as F
from torch.utils.data import DataLoader, default_collate

count = counts()


def collate(rows):
    count["data_loading"] += 1
    return default_collate(rows)


model = net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
unlabelled = DataLoader(examples(72), batch_size=8, shuffle=True, collate_fn=collate)
labelled = DataLoader(examples(44), batch_size=8, shuffle=True, drop_last=True, collate_fn=collate)
for _epoch in range(2):
    for (noise, _), (inputs, targets) in zip(unlabelled, labelled, strict=False):
        supervised = F.cross_entropy(model(inputs), targets)
        consistent = (model(noise).softmax(1) - model(noise + 0.1).softmax(1)).square().mean()
        count["forward_pass"] += 3
        loss = supervised + consistent
        optimizer.zero_grad()
        loss.backward()
        count["backward_pass"] += 1
        optimizer.step()
        count["steps"] += 1
        show(loss)
truth(count)
