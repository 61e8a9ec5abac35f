"""A pass over the loader computes mean and spread of the data before the training."""

import torch
from _tiny import STEP, counts, examples, net, show, truth
from torch.nn import functional as F
from torch.utils.data import DataLoader

count = counts()
model = net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loader = DataLoader(examples(40), batch_size=8)
total, squares, size = torch.zeros(8), torch.zeros(8), 0
for inputs, _ in loader:
    count["data_loading"] += 1
    total, squares, size = total + inputs.sum(0), squares + inputs.square().sum(0), size + len(inputs)
mean = total / size
std = (squares / size - mean.square()).sqrt()
for _epoch in range(2):
    for inputs, targets in loader:
        loss = F.cross_entropy(model((inputs - mean) / std), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        count.update(STEP)
        show(loss)
truth(count)
