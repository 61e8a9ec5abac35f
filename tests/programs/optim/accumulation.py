"""Gradient accumulation over four batches; the last group of an epoch has two and is updated all the same."""

import torch
from _tiny import counts, examples, net, show, truth
from torch.nn import functional as F
from torch.utils.data import DataLoader

count = counts()
model = net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loader = DataLoader(examples(40), batch_size=4, shuffle=True)
for _epoch in range(2):
    optimizer.zero_grad()
    for i, (inputs, targets) in enumerate(loader):
        count["data_loading"] += 1
        loss = F.cross_entropy(model(inputs), targets) / 4
        count["forward_pass"] += 1
        loss.backward()
        count["backward_pass"] += 1
        show(loss)
        if (i + 1) % 4 == 0 or i + 1 == len(loader):
            optimizer.step()
            count["steps"] += 1
            optimizer.zero_grad()
truth(count)
