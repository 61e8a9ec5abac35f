"""A compiled model that breaks its own graph and calls an uncompiled child: there are no other breaks."""

import torch
from _tiny import STEP, counts, examples, show, truth
from torch import nn
from torch._dynamo.utils import counters
from torch.nn import functional as F
from torch.utils.data import DataLoader

count = counts()


class Opaque(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(16, 16)

    @torch.compiler.disable
    def forward(self, x):
        return self.linear(x).relu()


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem, self.opaque, self.head = nn.Linear(8, 16), Opaque(), nn.Linear(16, 3)

    def forward(self, x):
        x = self.stem(x)
        torch._dynamo.graph_break()
        return self.head(self.opaque(x))


model = torch.compile(Model(), backend="eager")
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for inputs, targets in DataLoader(examples(80), batch_size=8, shuffle=True):
    optimizer.zero_grad()
    loss = F.cross_entropy(model(inputs), targets)
    loss.backward()
    optimizer.step()
    count.update(STEP)
    show(loss)
print("frames", sorted(counters["frames"].items()), sum(counters["graph_break"].values()), "graph breaks")
print("stats", sorted(counters["stats"].items()))
truth(count)
