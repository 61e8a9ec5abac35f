"""A wrapper around the loader fetches the next batch before it returns the current one."""

import torch
from _tiny import STEP, counts, examples, net, show, truth
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
        loss = F.cross_entropy(model(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        count.update(STEP)
        show(loss)
truth(count)
