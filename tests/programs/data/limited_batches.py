"""Both loops end by a break one batch late: the unused batch was fetched all the same."""

import torch
from _tiny import PASSES, counts, examples, net, show, truth
from torch.nn import functional as F
from torch.utils.data import DataLoader

count = counts("validation_epoch/data_loading", "validation_epoch/forward_pass")
model = net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loader, val_loader = DataLoader(examples(80), batch_size=8, shuffle=True), DataLoader(examples(40), batch_size=8)
for _epoch in range(2):
    for i, (inputs, targets) in enumerate(loader):
        count["data_loading"] += 1
        if i >= 6:
            break
        optimizer.zero_grad()
        loss = F.cross_entropy(model(inputs), targets)
        loss.backward()
        optimizer.step()
        count.update(PASSES)
        show(loss)
    with torch.no_grad():
        for i, (inputs, targets) in enumerate(val_loader):
            count["validation_epoch/data_loading"] += 1
            if i >= 2:
                break
            show(F.cross_entropy(model(inputs), targets))
            count["validation_epoch/forward_pass"] += 1
truth(count)
