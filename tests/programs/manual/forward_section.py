"""Only the forward pass is a manual section: it is not counted twice."""

import torch
from _tiny import PASSES, counts, examples, net, show, truth
from torch.nn import functional as F
from torch.utils.data import DataLoader

from training_profiler import profile_section

count = counts()
model = net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for inputs, targets in DataLoader(examples(80), batch_size=8, shuffle=True):
    count["data_loading"] += 1
    optimizer.zero_grad()
    with profile_section("forward_pass"):
        loss = F.cross_entropy(model(inputs), targets)
    loss.backward()
    optimizer.step()
    count.update(PASSES)
    show(loss)
truth(count)
