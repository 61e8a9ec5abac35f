"""A thread of the user's own fetches from the loader into a queue from which the loop takes its batches."""

import queue
import threading

import torch
from _tiny import counts, examples, net, show, truth
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
        count["data_loading"] += 1
        optimizer.zero_grad()
        loss = F.cross_entropy(model(inputs), targets)
        count["forward_pass"] += 1
        loss.backward()
        count["backward_pass"] += 1
        optimizer.step()
        count["steps"] += 1
        show(loss)
truth(count)
