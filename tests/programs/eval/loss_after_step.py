"""After each update the loss of the same batch is computed again without gradient, for the log."""

import torch
from _tiny import STEP, counts, examples, net, show, truth
from torch.nn import functional as F
from torch.utils.data import DataLoader

count = counts("validation_epoch/data_loading", "validation_epoch/forward_pass")
model = net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _epoch in range(2):
    for inputs, targets in DataLoader(examples(40), batch_size=8, shuffle=True):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(inputs), targets)
        loss.backward()
        optimizer.step()
        count.update(STEP)
        show(loss)
        torch.set_grad_enabled(False)
        show(F.cross_entropy(model(inputs), targets))
        torch.set_grad_enabled(True)
        count["validation_epoch/forward_pass"] += 1
truth(count)
