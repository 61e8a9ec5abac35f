"""Compiled code that calls the methods of tensors through their class: no graph break, no transfer in the step."""

import torch
from _tiny import STEP, counts, examples, net, show, truth
from torch import nn
from torch._dynamo.utils import counters
from torch.nn import functional as F
from torch.utils.data import DataLoader

count = counts()


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = net()

    def forward(self, x):
        return self.net(torch.Tensor.to(x, "cpu").to(torch.float32))


model = torch.compile(Model(), backend="eager", fullgraph=True)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for inputs, targets in DataLoader(examples(40), batch_size=8):
    optimizer.zero_grad()
    loss = F.cross_entropy(model(inputs), targets)
    loss.backward()
    optimizer.step()
    count.update(STEP)
    show(loss)
print("compiled", dict(counters["stats"]), dict(counters["graph_break"]))
truth(count)
