"""YOLO: a subclass of DataLoader that keeps one iterator forever, and an evaluation each epoch."""

import torch
from _tiny import EVALUATION, STEP, counts, examples, net, show, truth
from torch.nn import functional as F
from torch.utils.data import DataLoader


class Repeat:
    def __init__(self, sampler):
        self.sampler = sampler

    def __iter__(self):
        while True:
            yield from iter(self.sampler)


class InfiniteDataLoader(DataLoader):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        object.__setattr__(self, "batch_sampler", Repeat(self.batch_sampler))
        self.iterator = super().__iter__()

    def __len__(self):
        return len(self.batch_sampler.sampler)

    def __iter__(self):
        for _ in range(len(self)):
            yield next(self.iterator)


count = counts("validation_epoch/data_loading", "validation_epoch/forward_pass")
model = net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, nesterov=True, momentum=0.9)
train_loader = InfiniteDataLoader(examples(44), batch_size=8, shuffle=True)
val_loader = InfiniteDataLoader(examples(20), batch_size=8)
for _epoch in range(3):
    model.train()
    for inputs, targets in train_loader:
        loss = F.cross_entropy(model(inputs), targets)
        loss.backward()
        optimizer.step()
        count.update(STEP)
        optimizer.zero_grad()
        show(loss)
    model.eval()
    for inputs, targets in val_loader:
        with torch.inference_mode():
            show(F.cross_entropy(model(inputs), targets))
        count.update(EVALUATION)
truth(count)
