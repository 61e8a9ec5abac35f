"""The forward-forward algorithm: each layer has its optimizer, trains after the one before, and is never called."""

from itertools import pairwise

import torch
from _tiny import counts, examples, show, truth
from torch import nn
from torch.utils.data import DataLoader

count = counts()
del count["forward_pass"]  # Layer.forward is called by its name and multiplies matrices itself


class Layer(nn.Linear):
    def __init__(self, inputs, outputs):
        super().__init__(inputs, outputs)
        self.relu = nn.ReLU()
        self.opt = torch.optim.Adam(self.parameters(), lr=0.03)

    def forward(self, x):
        direction = x / (x.norm(2, 1, keepdim=True) + 1e-4)
        return self.relu(torch.mm(direction, self.weight.T) + self.bias.unsqueeze(0))

    def train_layer(self, x_pos, x_neg):
        for _ in range(6):
            g_pos, g_neg = self.forward(x_pos).pow(2).mean(1), self.forward(x_neg).pow(2).mean(1)
            loss = torch.log(1 + torch.exp(torch.cat([-g_pos + 1.5, g_neg - 1.5]))).mean()
            self.opt.zero_grad()
            loss.backward()
            count["backward_pass"] += 1
            self.opt.step()
            count["steps"] += 1
            show(loss)
        return self.forward(x_pos).detach(), self.forward(x_neg).detach()


class Net(nn.Module):
    def __init__(self, sizes):
        super().__init__()
        self.layers = nn.ModuleList(Layer(a, b) for a, b in pairwise(sizes))

    def train_net(self, x_pos, x_neg):
        for i, layer in enumerate(self.layers):
            print("layer", i)
            x_pos, x_neg = layer.train_layer(x_pos, x_neg)


x, _ = next(iter(DataLoader(examples(64), batch_size=64)))
count["data_loading"] += 1
Net([8, 12, 12, 12]).train_net(x, x[torch.randperm(64)])
truth(count)
