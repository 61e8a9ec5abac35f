"""A model of two thousand small modules, each called once per forward."""

import torch
from _tiny import PASSES, counts, show, truth
from torch import nn

count = counts()


class Scale(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))

    def forward(self, x):
        return x * self.weight


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(Scale() for _ in range(2000))

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


model = Model()
optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
for _ in range(5):
    optimizer.zero_grad()
    loss = model(torch.randn(4)).square().mean()
    loss.backward()
    optimizer.step()
    count.update(PASSES)
    show(loss)
truth(count)
