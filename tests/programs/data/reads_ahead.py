"""A wrapper around the loader has the next batch in hand before it gives one away."""

import torch
from _tiny import counts, examples, net, show, truth
from torch.nn import functional as F
from torch.utils.data import DataLoader


class ReadsAhead:
    def __init__(self, loader):
        self.loader = loader

    def __len__(self):
        return len(self.loader)

    def __iter__(self):
        batches = iter(self.loader)
        ahead = next(batches)
        for batch in batches:
            yield ahead
            ahead = batch
        yield ahead


count = counts()
model = net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _epoch in range(2):
    for inputs, targets in ReadsAhead(DataLoader(examples(48), batch_size=8, shuffle=True)):
        count["data_loading"] += 1
        loss = F.cross_entropy(model(inputs), targets)
        count["forward_pass"] += 1
        optimizer.zero_grad()
        loss.backward()
        count["backward_pass"] += 1
        optimizer.step()
        count["steps"] += 1
        show(loss)
truth(count)
