"""A training of one single step."""

import torch
from _tiny import counts, examples, net, show, truth
from torch.nn import functional as F
from torch.utils.data import DataLoader

count = counts()
model = net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
inputs, targets = next(iter(DataLoader(examples(40), batch_size=8)))
count["data_loading"] += 1
loss = F.cross_entropy(model(inputs), targets)
count["forward_pass"] += 1
loss.backward()
count["backward_pass"] += 1
optimizer.step()
count["steps"] += 1
show(loss)
truth(count)
