"""A thread of the user fetches from the loader into a queue, and the loop takes its batches from there."""

import queue
import threading

import torch
from _tiny import STEP, counts, examples, net, show, truth
from torch.nn import functional as F
from torch.utils.data import DataLoader

count = counts()


class BackgroundLoader:
    def __init__(self, loader):
        self.loader, self.batches = loader, queue.Queue(maxsize=2)

    def fill(self):
        for batch in self.loader:
            self.batches.put(batch)
        self.batches.put(None)

    def __iter__(self):
        thread = threading.Thread(target=self.fill, daemon=True)
        thread.start()
        while (batch := self.batches.get()) is not None:
            yield batch
        thread.join()


model = net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _epoch in range(2):
    for inputs, targets in BackgroundLoader(DataLoader(examples(40), batch_size=8)):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(inputs), targets)
        loss.backward()
        optimizer.step()
        count.update(STEP)
        show(loss)
truth(count)
