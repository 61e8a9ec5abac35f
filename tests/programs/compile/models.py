"""Compiled models in one graph each, by torch.compile with two backends and by Module.compile; then new shapes."""

import torch
from _tiny import STEP, counts, examples, show, truth
from torch import nn
from torch._dynamo.utils import counters
from torch.nn import functional as F
from torch.utils.data import DataLoader

count = counts("validation_epoch/forward_pass")


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))

    def forward(self, x):
        return self.layers(x).tanh()


plain = [Net() for _ in range(3)]
optimizer = torch.optim.SGD([p for model in plain for p in model.parameters()], lr=0.1)
models = [
    torch.compile(plain[0], backend="eager", fullgraph=True),
    torch.compile(plain[1], backend="aot_eager", fullgraph=True),
    plain[2],
]
plain[2].compile(backend="eager", fullgraph=True)
for model in models:
    model.train()
    for inputs, targets in DataLoader(examples(36), batch_size=8):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(inputs), targets)
        loss.backward()
        optimizer.step()
        count.update(STEP)
        show(loss)
    model.eval()
    with torch.no_grad():
        show(model(torch.ones(2, 8)).sum())
        count["validation_epoch/forward_pass"] += 1
for kind in ("frames", "stats", "graph_break", "recompile_limit", "aot_autograd"):
    print(kind, sorted(counters[kind].items()))
truth(count)
