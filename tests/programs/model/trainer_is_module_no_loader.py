"""A trainer that is a module, without loader or zero_grad before its first forward: backward is the first sign."""

import torch
from _tiny import PASSES, counts, net, show, truth
from torch import nn

count = counts()


class Trainer(nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model
        self.optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def forward(self):
        for _ in range(12):
            loss = self.model(torch.randn(8, 8)).square().mean()
            loss.backward()
            self.optimizer.step()
            count.update(PASSES)
            self.optimizer.zero_grad()
            show(loss)


Trainer(net())()
truth(count)
