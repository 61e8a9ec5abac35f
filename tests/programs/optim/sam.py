"""Two forwards and two backwards an update, in two half steps that are no Optimizer.step of their own."""

import torch
from _sam import SAM
from _tiny import counts, examples, net, show, truth
from torch.nn import functional as F
from torch.utils.data import DataLoader

count = counts()
model = net()
optimizer = SAM(model.parameters(), torch.optim.SGD, lr=0.1, momentum=0.9)
for _epoch in range(2):
    for inputs, targets in DataLoader(examples(40), batch_size=8, shuffle=True):
        count["data_loading"] += 1
        loss = F.cross_entropy(model(inputs), targets)
        loss.backward()
        optimizer.first_step(zero_grad=True)
        F.cross_entropy(model(inputs), targets).backward()
        optimizer.second_step(zero_grad=True)
        count["forward_pass"] += 2
        count["backward_pass"] += 2
        count["steps"] += 1
        show(loss)
truth(count)
