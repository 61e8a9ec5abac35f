"""Every update has a new optimizer with a smaller learning rate."""

import torch
from _tiny import STEP, counts, examples, net, show, truth
from torch.nn import functional as F
from torch.utils.data import DataLoader

count = counts()
model, lr = net(), 0.1
for inputs, targets in DataLoader(examples(80), batch_size=8, shuffle=True):
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    optimizer.zero_grad()
    loss = F.cross_entropy(model(inputs), targets)
    loss.backward()
    optimizer.step()
    count.update(STEP)
    lr *= 0.9
    show(loss)
truth(count)
