"""All micro-batches of an update are fetched before the first forward; the last group is incomplete."""

from itertools import islice

import torch
from _tiny import counts, examples, net, show, truth
from torch.nn import functional as F
from torch.utils.data import DataLoader

count = counts()
model = net()
optimizer = torch.optim.AdamW(model.parameters())
loader = DataLoader(examples(40), batch_size=4, shuffle=True)
for _epoch in range(2):
    batches = iter(loader)
    while group := list(islice(batches, 4)):
        count["data_loading"] += len(group)
        for inputs, targets in group:
            loss = F.cross_entropy(model(inputs), targets) / len(group)
            count["forward_pass"] += 1
            loss.backward()
            count["backward_pass"] += 1
        optimizer.step()
        count["steps"] += 1
        optimizer.zero_grad()
        show(loss)
truth(count)
