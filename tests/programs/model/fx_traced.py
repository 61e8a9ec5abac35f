"""The model is traced by torch.fx, which replaces Module.__call__ for a while, and its GraphModule is trained."""

import torch
from _tiny import STEP, counts, examples, net, show, truth
from torch import fx
from torch.nn import functional as F
from torch.utils.data import DataLoader

count = counts()
model = fx.symbolic_trace(net())
print(model.code)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for inputs, targets in DataLoader(examples(80), batch_size=8, shuffle=True):
    optimizer.zero_grad()
    loss = F.cross_entropy(model(inputs), targets)
    loss.backward()
    optimizer.step()
    count.update(STEP)
    show(loss)
    if count["steps"] == 5:
        print(len(fx.symbolic_trace(model).graph.nodes), "nodes")
truth(count)
