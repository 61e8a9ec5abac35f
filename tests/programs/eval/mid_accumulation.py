"""An evaluation falls between the micro-batches of one update."""

import torch
from _tiny import counts, examples, net, show, truth
from torch.nn import functional as F
from torch.utils.data import DataLoader

count = counts("validation_epoch/data_loading", "validation_epoch/forward_pass+forward_without_grad")
model = net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loader, val_loader = DataLoader(examples(128), batch_size=8, shuffle=True), DataLoader(examples(20), batch_size=8)
for i, (inputs, targets) in enumerate(loader):
    count["data_loading"] += 1
    loss = F.cross_entropy(model(inputs), targets) / 4
    count["forward_pass"] += 1
    loss.backward()
    count["backward_pass"] += 1
    show(loss)
    if (i + 1) % 4 == 0:
        optimizer.step()
        count["steps"] += 1
        optimizer.zero_grad()
    if (i + 1) % 6 == 0:
        with torch.no_grad():
            for val_inputs, val_targets in val_loader:
                count["validation_epoch/data_loading"] += 1
                show(F.cross_entropy(model(val_inputs), val_targets))
                count["validation_epoch/forward_pass+forward_without_grad"] += 1
truth(count)
