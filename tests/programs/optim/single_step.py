"""A training of a single step."""

import torch
from _tiny import STEP, counts, examples, net, show, truth
from torch.nn import functional as F
from torch.utils.data import DataLoader

count = counts()
model = net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
inputs, targets = next(iter(DataLoader(examples(40), batch_size=8)))
loss = F.cross_entropy(model(inputs), targets)
loss.backward()
optimizer.step()
count.update(STEP)
show(loss)
truth(count)
