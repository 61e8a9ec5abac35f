"""The data set computes features with a network that has parameters and is never trained."""

import torch
from _tiny import STEP, counts, net, show, truth
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset


class Features(Dataset):
    def __init__(self):
        self.data, self.extract = torch.randn(40, 5), nn.Linear(5, 8)

    def __len__(self):
        return len(self.data)

    def __getitem__(self, index):
        return self.extract(self.data[index]).detach(), index % 3


count = counts()
model = net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for inputs, targets in DataLoader(Features(), batch_size=8, shuffle=True):
    loss = F.cross_entropy(model(inputs), targets)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    count.update(STEP)
    show(loss)
truth(count)
