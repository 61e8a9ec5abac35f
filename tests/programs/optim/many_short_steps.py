"""Four thousand steps of a fraction of a millisecond."""

import torch
from _tiny import counts, show, truth
from torch import nn

count = counts()
model = nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, foreach=False)
x = torch.randn(4, 2)
for step in range(4000):
    loss = model(x).square().mean()
    count["forward_pass"] += 1
    optimizer.zero_grad()
    loss.backward()
    count["backward_pass"] += 1
    optimizer.step()
    count["steps"] += 1
    if step % 500 == 0:
        show(loss)
truth(count)
