"""The data set's transforms are modules, called thousands of times: in this process, or in so many workers."""

import sys

import torch
from _tiny import STEP, counts, net, show, truth
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset


class Normalize(nn.Module):
    def __init__(self, mean, std):
        super().__init__()
        self.register_buffer("mean", torch.tensor(mean))
        self.register_buffer("std", torch.tensor(std))

    def forward(self, x):
        return (x - self.mean) / self.std


class Noise(nn.Module):
    def forward(self, x):
        return x + 0.01 * torch.randn_like(x)


class Examples(Dataset):
    def __init__(self):
        self.data = torch.randn(96, 8)
        self.transform = nn.Sequential(*(nn.Sequential(Normalize(0.1, 1.1), Noise(), nn.Identity()) for _ in range(8)))

    def __len__(self):
        return len(self.data)

    def __getitem__(self, index):
        return self.transform(self.data[index]), index % 3


count = counts()
model = net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loader = DataLoader(Examples(), batch_size=16, shuffle=True, num_workers=int(*sys.argv[1:]))
for _epoch in range(2):
    for inputs, targets in loader:
        loss = F.cross_entropy(model(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        count.update(STEP)
        show(loss)
truth(count)
