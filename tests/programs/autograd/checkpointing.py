"""Activation checkpointing of both kinds: the recomputed forward is part of the backward, not a second forward."""

import torch
from _tiny import STEP, counts, examples, show, truth
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint, checkpoint_sequential
from torch.utils.data import DataLoader

count = counts()
recomputed = 0


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(16, 16), nn.Dropout(0.1), nn.ReLU())

    def forward(self, x):
        global recomputed
        recomputed += 1
        return x + self.inner(x)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem, self.head = nn.Linear(8, 16), nn.Linear(16, 3)
        self.first, self.second = Block(), Block()
        self.rest = nn.Sequential(Block(), Block())

    def forward(self, x):
        x = self.stem(x)
        x = checkpoint(self.first, x, use_reentrant=True)
        x = checkpoint(self.second, x, use_reentrant=False)
        return self.head(checkpoint_sequential(self.rest, 2, x, use_reentrant=False))


model = Model()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _epoch in range(2):
    for inputs, targets in DataLoader(examples(40), batch_size=8, shuffle=True):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(inputs), targets)
        loss.backward()
        optimizer.step()
        count.update(STEP)
        show(loss)
print(recomputed, "calls of blocks")
truth(count)
