"""8,000 forwards without gradient between two updates."""

import torch
from _tiny import PASSES, counts, show, truth
from torch import nn

count = counts("validation_epoch/forward_pass+forward_without_grad")
policy = nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 1))
optimizer = torch.optim.SGD(policy.parameters(), lr=0.1)
for _update in range(3):
    state, visited = torch.zeros(2), []
    with torch.no_grad():
        for _ in range(8000):
            state = state + policy(state)
            count["validation_epoch/forward_pass+forward_without_grad"] += 1
    visited = torch.randn(64, 2) + state / 1e4
    loss = policy(visited).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    count.update(PASSES)
    show(loss)
truth(count)
