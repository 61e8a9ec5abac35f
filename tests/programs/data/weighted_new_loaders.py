"""A loader is drawn at random for each batch, three to one; all are recreated for each epoch."""

import random

import torch
from _tiny import STEP, counts, examples, net, show, truth
from torch.nn import functional as F
from torch.utils.data import DataLoader

random.seed(1)
count = counts()
batches = dict.fromkeys(("main", "aux"), 0)
model = net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
main_set, aux_set = examples(200), examples(60)


def train_epoch():
    """Train until a loader is empty."""
    main = iter(DataLoader(main_set, batch_size=8, shuffle=True))
    aux = iter(DataLoader(aux_set, batch_size=4, shuffle=True))
    order = []
    while True:
        which = random.choices((0, 1), (3, 1))[0] if order else 0
        try:
            inputs, targets = next(aux if which else main)
        except StopIteration:
            return
        order.append(which)
        batches["aux" if which else "main"] += 1
        optimizer.zero_grad()
        loss = F.cross_entropy(model(inputs), targets)
        loss.backward()
        optimizer.step()
        count.update(STEP)
        show(loss)


for _epoch in range(3):
    train_epoch()
truth({**count, "batches of": batches})
