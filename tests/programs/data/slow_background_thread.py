"""A thread of the user is inside a fetch that calls a module while the loop takes its first step."""

import queue
import threading

import torch
from _tiny import STEP, counts, net, show, truth
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

count = counts()
has_stepped = threading.Event()
rescale = nn.Linear(8, 8).requires_grad_(False)


class Examples(Dataset):
    def __len__(self):
        return 12

    def __getitem__(self, at):
        if at >= 4:  # the second batch, while the loop has the first
            has_stepped.wait()
        return rescale(torch.full((8,), at / 8)), at % 3


def fill(batches):
    for batch in DataLoader(Examples(), batch_size=4):
        batches.put(batch)
    batches.put(None)


model = net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
batches = queue.Queue()
thread = threading.Thread(target=fill, args=(batches,), daemon=True)
thread.start()
while (batch := batches.get()) is not None:
    inputs, targets = batch
    optimizer.zero_grad()
    loss = F.cross_entropy(model(inputs), targets)
    loss.backward()
    optimizer.step()
    count.update(STEP)
    show(loss)
    has_stepped.set()
thread.join()
truth(count)
