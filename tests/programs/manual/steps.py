"""The user ends each step by hand, after every second batch, when the gradients of both were applied."""

import torch
from _tiny import counts, examples, net, show, truth
from torch.nn import functional as F
from torch.utils.data import DataLoader

from training_profiler import profile_step

count = counts()
model = net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for i, (inputs, targets) in enumerate(DataLoader(examples(80), batch_size=4, shuffle=True)):
    count["data_loading"] += 1
    loss = F.cross_entropy(model(inputs), targets)
    count["forward_pass"] += 1
    loss.backward()
    count["backward_pass"] += 1
    show(loss)
    if i % 2:
        optimizer.step()
        optimizer.zero_grad()
        profile_step()
        count["steps"] += 1
truth(count)
