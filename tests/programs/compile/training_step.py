"""The whole training step is compiled: forward, backward, clipping and update lie between its graphs."""

import torch
from _tiny import counts, examples, show, truth
from torch import nn
from torch._dynamo.utils import counters
from torch.nn import functional as F
from torch.utils.data import DataLoader

count = counts()
# What of a compiled step can be seen depends on where the compiler cuts it; the update is compiled too.
del count["forward_pass"], count["backward_pass"], count["steps"]
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


@torch.compile(backend="eager")
def train_step(inputs, targets):
    optimizer.zero_grad()
    loss = F.cross_entropy(model(inputs.to("cpu", torch.float32)), targets.to("cpu"))
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    return loss


for inputs, targets in DataLoader(examples(80), batch_size=8, shuffle=True):
    count["data_loading"] += 1
    show(train_step(inputs, targets))
print(sum(counters["graph_break"].values()), "graph breaks")
print("stats", sorted(counters["stats"].items()))
truth(count)
