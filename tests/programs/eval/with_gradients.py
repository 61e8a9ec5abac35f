"""Evaluations that forget no_grad: over a loader in train mode, and by one call in eval mode without a loader."""

import torch
from _tiny import EVALUATION, STEP, counts, examples, net, show, truth
from torch.nn import functional as F
from torch.utils.data import DataLoader

count = counts("validation_epoch", "validation_epoch/data_loading", "validation_epoch/forward_pass")
model = net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loader, val_loader = DataLoader(examples(40), batch_size=8, shuffle=True), DataLoader(examples(20), batch_size=8)
held_out, wanted = torch.randn(30, 8), torch.randint(3, (30,))
for epoch in range(4):
    model.train()
    for inputs, targets in loader:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(inputs), targets)
        loss.backward()
        optimizer.step()
        count.update(STEP)
        show(loss)
    if epoch % 2:
        for inputs, targets in val_loader:
            show(F.cross_entropy(model(inputs), targets))
            count.update(EVALUATION)
    else:
        model.eval()
        show(F.cross_entropy(model(held_out), wanted))
        count["validation_epoch/forward_pass"] += 1
    count["validation_epoch"] += 1
truth(count)
