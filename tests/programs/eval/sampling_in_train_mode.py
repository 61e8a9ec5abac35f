"""Samples are drawn between steps without gradient, with the model in train mode."""

import torch
from _tiny import STEP, counts, examples, net, show, truth
from torch.nn import functional as F
from torch.utils.data import DataLoader

count = counts("validation_epoch/forward_pass")
model = net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loader = DataLoader(examples(44), batch_size=8, shuffle=True)
for _epoch in range(2):
    for inputs, targets in loader:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(inputs), targets)
        loss.backward()
        optimizer.step()
        count.update(STEP)
        show(loss)
        if count["steps"] % 4 == 0:
            with torch.no_grad():
                sample = torch.randn(2, 8)
                for _ in range(6):
                    sample = sample + 0.1 * model(sample).sum(1, keepdim=True)
                    count["validation_epoch/forward_pass"] += 1
            show(sample.sum())
truth(count)
