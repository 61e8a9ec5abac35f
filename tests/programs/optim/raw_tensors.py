"""An optimizer over plain tensors: steps, and no module that could be called."""

import torch
from _tiny import counts, show, truth

count = counts()
x, y = torch.randn(64, 3), torch.randn(64)
w, b = torch.zeros(3, requires_grad=True), torch.zeros((), requires_grad=True)
optimizer = torch.optim.SGD([w, b], lr=0.1)
for _ in range(15):
    loss = (x @ w + b - y).square().mean()
    optimizer.zero_grad()
    loss.backward()
    count["backward_pass"] += 1
    optimizer.step()
    count["steps"] += 1
    show(loss)
truth(count)
