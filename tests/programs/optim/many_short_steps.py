"""Four thousand steps of less than a millisecond."""

import torch
from _tiny import PASSES, counts, show, truth
from torch import nn

count = counts()
model = nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, foreach=False)
x = torch.randn(4, 2)
for step in range(4000):
    loss = model(x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    count.update(PASSES)
    if step % 500 == 0:
        show(loss)
truth(count)
