"""Training and evaluation both read one batch ahead, as CUDA prefetchers do."""

import torch
from _tiny import EVALUATION, STEP, counts, examples, net, show, truth
from torch.nn import functional as F
from torch.utils.data import DataLoader


class Prefetcher:
    def __init__(self, loader):
        self.batches = iter(loader)
        self.preload()

    def preload(self):
        self.ahead = next(self.batches, None)

    def next(self):
        batch = self.ahead
        if batch is not None:
            self.preload()
        return batch


count = counts("validation_epoch/data_loading", "validation_epoch/forward_pass")
model = net()
optimizer = torch.optim.Adam(model.parameters())
train_loader, val_loader = DataLoader(examples(40), batch_size=8), DataLoader(examples(24), batch_size=8)
for _epoch in range(2):
    model.train()
    prefetcher = Prefetcher(train_loader)
    batch = prefetcher.next()
    while batch is not None:
        loss = F.cross_entropy(model(batch[0]), batch[1])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        count.update(STEP)
        show(loss)
        batch = prefetcher.next()
    model.eval()
    prefetcher = Prefetcher(val_loader)
    batch = prefetcher.next()
    while batch is not None:
        with torch.no_grad():
            show(F.cross_entropy(model(batch[0]), batch[1]))
        count.update(EVALUATION)
        batch = prefetcher.next()
truth(count)
