"""The optimizer is made anew for every single update, with a smaller learning rate each time."""

import torch
from _tiny import counts, examples, net, show, truth
from torch.nn import functional as F
from torch.utils.data import DataLoader

count = counts()
model, lr = net(), 0.1
for inputs, targets in DataLoader(examples(80), batch_size=8, shuffle=True):
    count["data_loading"] += 1
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    optimizer.zero_grad()
    loss = F.cross_entropy(model(inputs), targets)
    count["forward_pass"] += 1
    loss.backward()
    count["backward_pass"] += 1
    optimizer.step()
    count["steps"] += 1
    lr *= 0.9
    show(loss)
truth(count)
