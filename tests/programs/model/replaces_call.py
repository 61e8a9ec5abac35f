"""The program wraps Module.__call__ to count calls; "alone" leaves out the original, which makes forwards invisible."""

import sys

import torch
from _tiny import STEP, counts, examples, net, show, truth
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader

count, calls = counts(), 0
is_alone = sys.argv[1:] == ["alone"]
original = nn.Module.__call__


def counted(self, *args, **kwargs):
    global calls
    calls += 1
    return self.forward(*args, **kwargs) if is_alone else original(self, *args, **kwargs)


nn.Module.__call__ = counted
model = net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for inputs, targets in DataLoader(examples(80), batch_size=8, shuffle=True):
    optimizer.zero_grad()
    loss = F.cross_entropy(model(inputs), targets)
    loss.backward()
    optimizer.step()
    count.update(STEP)
    show(loss)
print(calls, "calls", nn.Module.__call__ is counted)
if is_alone:
    del count["forward_pass"]
truth(count)
