"""Every second step an averaged copy of the model draws a few samples, before the next batch is fetched."""

import copy

import torch
from _tiny import STEP, counts, examples, net, show, truth
from torch.nn import functional as F
from torch.utils.data import DataLoader

count = counts("validation_epoch/forward_pass")
model = net()
average = copy.deepcopy(model)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)


@torch.no_grad()
def sample():
    x = torch.zeros(1, 8)
    for _ in range(3):
        x = x + average(x).mean()
        count["validation_epoch/forward_pass"] += 1
    show(x.sum())


for step, (inputs, targets) in enumerate(DataLoader(examples(64), batch_size=8)):
    loss = F.cross_entropy(model(inputs), targets)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    count.update(STEP)
    with torch.no_grad():
        for mean, parameter in zip(average.parameters(), model.parameters(), strict=True):
            mean.lerp_(parameter, 0.1)
    show(loss)
    if step % 2:
        sample()
truth(count)
