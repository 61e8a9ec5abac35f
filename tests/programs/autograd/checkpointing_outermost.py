"""The whole model is checkpointed from the loop: its second forward is part of the backward."""

import torch
from _tiny import STEP, counts, examples, net, show, truth
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader

count = counts()
model = net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for inputs, targets in DataLoader(examples(80), batch_size=8, shuffle=True):
    optimizer.zero_grad()
    loss = F.cross_entropy(checkpoint(model, inputs, use_reentrant=False), targets)
    loss.backward()
    optimizer.step()
    count.update(STEP)
    show(loss)
truth(count)
