"""Gradients are clipped by norm and by value, through names imported on their own."""

import torch
from _tiny import STEP, counts, examples, net, show, truth
from torch.nn import functional as F
from torch.nn.utils import clip_grad_norm_, clip_grad_value_
from torch.utils.data import DataLoader

count = counts("metrics_computation")
model = net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for inputs, targets in DataLoader(examples(80), batch_size=8, shuffle=True):
    optimizer.zero_grad()
    loss = F.cross_entropy(model(inputs), targets)
    loss.backward()
    print("norm", clip_grad_norm_(model.parameters(), max_norm=0.5).item().hex())
    clip_grad_value_(model.parameters(), 0.05)
    count["metrics_computation"] += 2
    optimizer.step()
    count.update(STEP)
    show(loss)
truth(count)
