"""A physics-informed network: ten updates of Adam, then three of LBFGS; derivatives by the input are gradients too."""

import torch
from _tiny import counts, show, truth
from torch import nn

count = counts()
model = nn.Sequential(nn.Linear(1, 16), nn.Tanh(), nn.Linear(16, 1))
t = torch.linspace(0, 1, 20)[:, None].requires_grad_(True)


def residual():
    u = model(t)
    count["forward_pass"] += 1
    (du,) = torch.autograd.grad(u, t, torch.ones_like(u), create_graph=True)
    count["backward_pass"] += 1
    return (du + 2 * u).square().mean() + (u[0] - 1).square().mean()


def closure():
    optimizer.zero_grad()
    loss = residual()
    loss.backward()
    count["backward_pass"] += 1
    show(loss)
    return loss


optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
for _ in range(10):
    closure()
    optimizer.step()
    count["steps"] += 1
optimizer = torch.optim.LBFGS(model.parameters(), max_iter=5, line_search_fn="strong_wolfe")
for _ in range(3):
    optimizer.step(closure)
    count["steps"] += 1
truth(count)
