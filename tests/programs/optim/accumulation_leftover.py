"""Gradient accumulation whose last two batches of an epoch are never used for an update; evaluation follows them."""

import torch
from _tiny import EVALUATION, counts, examples, net, show, truth
from torch.nn import functional as F
from torch.utils.data import DataLoader

count = counts("validation_epoch/data_loading", "validation_epoch/forward_pass")
model = net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loader, val_loader = DataLoader(examples(40), batch_size=4, shuffle=True), DataLoader(examples(12), batch_size=4)
for _epoch in range(2):
    model.train()
    for i, (inputs, targets) in enumerate(loader):
        count["data_loading"] += 1
        loss = F.cross_entropy(model(inputs), targets)
        count["forward_pass"] += 1
        (loss / 4).backward()
        count["backward_pass"] += 1
        show(loss)
        if (i + 1) % 4 == 0:
            optimizer.step()
            count["steps"] += 1
            optimizer.zero_grad()
    model.eval()
    with torch.no_grad():
        for inputs, targets in val_loader:
            show(F.cross_entropy(model(inputs), targets))
            count.update(EVALUATION)
truth(count)
