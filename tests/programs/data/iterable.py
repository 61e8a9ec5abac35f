"""A stream without a length, in batches and already batched."""

import torch
from _tiny import STEP, counts, net, show, truth
from torch.nn import functional as F
from torch.utils.data import DataLoader, IterableDataset


class Stream(IterableDataset):
    def __init__(self, shape):
        self.shape = shape

    def __iter__(self):
        for i in range(20):
            yield torch.randn(*self.shape, 8), torch.full(self.shape, i % 3)


count = counts()
model = net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for loader in (DataLoader(Stream(()), batch_size=8), DataLoader(Stream((4,)), batch_size=None)):
    for inputs, targets in loader:
        loss = F.cross_entropy(model(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        count.update(STEP)
        show(loss)
truth(count)
