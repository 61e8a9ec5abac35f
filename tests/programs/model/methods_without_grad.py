"""A policy that is never called plays an episode without gradient: each call of its method is a forward pass."""

import torch
from _tiny import PASSES, counts, show, truth
from torch import nn

count = counts("rollout", "forward_without_grad")


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(4, 8), nn.Linear(8, 2)

    def act(self, state):
        return self.head(self.body(state).tanh())


policy = Policy()
optimizer = torch.optim.Adam(policy.parameters(), lr=1e-2)
for _episode in range(5):
    loss = policy.act(torch.randn(16, 4)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    count.update(PASSES)
    show(loss)
    with torch.no_grad():
        for _ in range(10):
            policy.act(torch.randn(1, 4))
            count["forward_without_grad"] += 1
    count["rollout"] += 1
truth(count)
