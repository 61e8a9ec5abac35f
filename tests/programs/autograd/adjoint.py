"""A model that solves an ODE: its adjoint solver calls a module and autograd.grad inside the backward."""

import torch
from _adjoint import odeint_adjoint
from _tiny import STEP, counts, examples, show, truth
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader

count = counts()


class ODENet(nn.Module):
    def __init__(self):
        super().__init__()
        self.func, self.head = nn.Sequential(nn.Linear(8, 8), nn.Tanh()), nn.Linear(8, 3)

    def forward(self, x):
        return self.head(odeint_adjoint(self.func, x))


model = ODENet()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
for inputs, targets in DataLoader(examples(80), batch_size=8, shuffle=True):
    optimizer.zero_grad()
    loss = F.cross_entropy(model(inputs), targets)
    loss.backward()
    optimizer.step()
    count.update(STEP)
    show(loss)
truth(count)
