"""Lazy layers learn their shapes, and change their class, in a dry run on a batch of the loader."""

import torch
from _tiny import STEP, counts, examples, show, truth
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader

count = counts("validation_epoch/forward_pass+forward_without_grad")
model = nn.Sequential(nn.LazyLinear(16), nn.ReLU(), nn.LazyLinear(3))
loader = DataLoader(examples(80), batch_size=8, shuffle=True)
with torch.no_grad():
    print(model(next(iter(loader))[0]).shape)
count["validation_epoch/forward_pass+forward_without_grad"] += 1
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for inputs, targets in loader:
    optimizer.zero_grad()
    loss = F.cross_entropy(model(inputs), targets)
    loss.backward()
    optimizer.step()
    count.update(STEP)
    show(loss)
print([type(layer).__name__ for layer in model])
truth(count)
