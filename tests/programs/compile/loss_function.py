"""The model is called inside a compiled function, where nobody sees it: no number of forwards is promised."""

import torch
from _tiny import counts, examples, net, show, truth
from torch._dynamo.utils import counters
from torch.nn import functional as F
from torch.utils.data import DataLoader

count = counts()
del count["forward_pass"]
model = net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


@torch.compile(backend="aot_eager", fullgraph=True)
def loss_of(inputs, targets):
    return F.cross_entropy(model(inputs), targets)


for inputs, targets in DataLoader(examples(80), batch_size=8, shuffle=True):
    count["data_loading"] += 1
    optimizer.zero_grad()
    loss = loss_of(inputs, targets)
    loss.backward()
    count["backward_pass"] += 1
    optimizer.step()
    count["steps"] += 1
    show(loss)
for kind in ("frames", "stats", "graph_break", "aot_autograd"):
    print(kind, sorted(counters[kind].items()))
truth(count)
