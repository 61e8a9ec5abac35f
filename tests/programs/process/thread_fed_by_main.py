"""The main thread fetches batches for a thread that trains, and is inside a fetch at its first step."""

import queue
import threading

import torch
from _tiny import PASSES, counts, net, show, truth
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

count = counts()
has_stepped = threading.Event()
batches = queue.Queue()


class Examples(Dataset):
    def __len__(self):
        return 12

    def __getitem__(self, at):
        if at >= 4:
            has_stepped.wait()
        return torch.full((8,), at / 8), at % 3


model = net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def train():
    while (batch := batches.get()) is not None:
        inputs, targets = batch
        optimizer.zero_grad()
        loss = F.cross_entropy(model(inputs), targets)
        loss.backward()
        optimizer.step()
        count.update(PASSES)
        show(loss)
        has_stepped.set()


thread = threading.Thread(target=train)
thread.start()
for batch in DataLoader(Examples(), batch_size=4):
    count["data_loading"] += 1
    batches.put(batch)
batches.put(None)
thread.join()
truth(count)
