"""Two workers, restarted each epoch, or persistent."""

import sys

import torch
from _tiny import STEP, counts, examples, net, show, truth
from torch.nn import functional as F
from torch.utils.data import DataLoader

count = counts("validation_epoch/data_loading")
model = net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
persistent = {"persistent_workers": True, "prefetch_factor": 3} if "persistent" in sys.argv else {}
loader = DataLoader(examples(44), batch_size=8, shuffle=True, num_workers=2, **persistent)
val_loader = DataLoader(examples(20), batch_size=8, num_workers=2, **persistent)
for _epoch in range(2):
    for inputs, targets in loader:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(inputs), targets)
        loss.backward()
        optimizer.step()
        count.update(STEP)
        show(loss)
    with torch.no_grad():
        for inputs, targets in val_loader:
            count["validation_epoch/data_loading"] += 1
            show(F.cross_entropy(model(inputs), targets))
truth(count)
