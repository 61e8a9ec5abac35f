"""A siamese network is called twice a step, with the same weights: two forwards."""

import torch
from _tiny import counts, examples, net, show, truth
from torch import nn
from torch.utils.data import DataLoader

count = counts()
model, criterion = net(), nn.TripletMarginLoss()
optimizer = torch.optim.Adam(model.parameters())
for anchor, _ in DataLoader(examples(80), batch_size=8, shuffle=True):
    count["data_loading"] += 1
    optimizer.zero_grad()
    here, there = model(anchor), model(anchor + 0.1)
    count["forward_pass"] += 2
    loss = criterion(here, there, there.flip(0))
    loss.backward()
    count["backward_pass"] += 1
    optimizer.step()
    count["steps"] += 1
    show(loss)
truth(count)
