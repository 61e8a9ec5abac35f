"""Three loaders in turn, two batches a step; an exhausted loader starts again, and one is evaluated."""

import torch
from _tiny import counts, examples, net, show, truth
from torch.nn import functional as F
from torch.utils.data import DataLoader

ACCUMULATE_EVERY = 2
count = counts("validation_epoch/data_loading")
batches = dict.fromkeys(("loaders[0]", "loaders[1]", "loaders[2]", "val_loader"), 0)
model = net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loaders = [DataLoader(examples(size), batch_size=batch, shuffle=True) for size, batch in ((40, 8), (12, 4), (64, 16))]
val_loader = DataLoader(examples(20), batch_size=8)
iterators = [iter(loader) for loader in loaders]


def fetch(which):
    """Return the next batch of an endless loader."""
    try:
        batch = next(iterators[which])
    except StopIteration:
        iterators[which] = iter(loaders[which])
        batch = next(iterators[which])
    count["data_loading"] += 1
    batches[f"loaders[{which}]"] += 1
    return batch


for step in range(18):
    for part in range(ACCUMULATE_EVERY):
        inputs, targets = fetch((step * ACCUMULATE_EVERY + part) % 3)
        loss = F.cross_entropy(model(inputs), targets) / ACCUMULATE_EVERY
        count["forward_pass"] += 1
        loss.backward()
        count["backward_pass"] += 1
    optimizer.step()
    count["steps"] += 1
    optimizer.zero_grad()
    show(loss)
    if step % 6 == 5:
        model.eval()
        with torch.no_grad():
            for inputs, targets in val_loader:
                count["validation_epoch/data_loading"] += 1
                batches["val_loader"] += 1
                show(F.cross_entropy(model(inputs), targets))
        model.train()
truth({**count, "batches of": batches})
