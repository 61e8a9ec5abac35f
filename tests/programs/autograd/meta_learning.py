"""MAML: an inner gradient step for each task, then one backward through all of them."""

import torch
from _tiny import counts, show, truth
from torch import nn
from torch.func import functional_call
from torch.nn import functional as F

TASKS = 3
count = counts()
model = nn.Sequential(nn.Linear(1, 16), nn.Tanh(), nn.Linear(16, 1))
meta_optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
for _iteration in range(8):
    meta_loss = torch.zeros(())
    for _ in range(TASKS):
        phase = torch.rand(1) * 3
        support, query = torch.rand(5, 1) * 4 - 2, torch.rand(5, 1) * 4 - 2
        weights = dict(model.named_parameters())
        loss = F.mse_loss(functional_call(model, weights, (support,)), torch.sin(support + phase))
        grads = torch.autograd.grad(loss, tuple(weights.values()), create_graph=True)
        count["backward_pass"] += 1
        fast = {name: w - 0.1 * g for (name, w), g in zip(weights.items(), grads, strict=True)}
        meta_loss = meta_loss + F.mse_loss(functional_call(model, fast, (query,)), torch.sin(query + phase))
        count["forward_pass"] += 2
    meta_optimizer.zero_grad()
    meta_loss.backward()
    count["backward_pass"] += 1
    meta_optimizer.step()
    count["steps"] += 1
    show(meta_loss)
truth(count)
