"""A retained graph is walked twice, then two losses go into one backward: three backwards a step."""

import torch
from _tiny import counts, examples, net, show, truth
from torch.nn import functional as F
from torch.utils.data import DataLoader

count = counts()
model = net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for inputs, targets in DataLoader(examples(80), batch_size=8, shuffle=True):
    count["data_loading"] += 1
    optimizer.zero_grad()
    outputs = model(inputs)
    count["forward_pass"] += 1
    loss = F.cross_entropy(outputs, targets)
    loss.backward(retain_graph=True)
    outputs.square().mean().backward(retain_graph=True)
    torch.autograd.backward([outputs.abs().mean(), outputs.sum(dim=1)], [None, torch.full((len(inputs),), 0.1)])
    count["backward_pass"] += 3
    optimizer.step()
    count["steps"] += 1
    show(loss)
truth(count)
