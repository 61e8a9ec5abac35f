"""Adversarial training: three gradients by the input, then one step on the perturbed input."""

import torch
from _tiny import STEP, counts, examples, net, show, truth
from torch.nn import functional as F
from torch.utils.data import DataLoader

count = counts()
model = net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def attack(inputs, targets):
    delta = torch.zeros_like(inputs, requires_grad=True)
    for _ in range(3):
        loss = F.cross_entropy(model(inputs + delta), targets)
        count["forward_pass"] += 1
        loss.backward()
        count["backward_pass"] += 1
        delta.data = (delta + 0.02 * delta.grad.sign()).clamp(-0.05, 0.05)
        delta.grad.zero_()
    return delta.detach()


for inputs, targets in DataLoader(examples(80), batch_size=8, shuffle=True):
    delta = attack(inputs, targets)
    optimizer.zero_grad()
    loss = F.cross_entropy(model(inputs + delta), targets)
    loss.backward()
    optimizer.step()
    count.update(STEP)
    show(loss)
truth(count)
