"""A conversion that names a device is a transfer; one that names only a dtype is not."""

import torch
from _tiny import STEP, counts, examples, net, show, truth
from torch.nn import functional as F
from torch.utils.data import DataLoader

device = torch.device("cpu")
count = counts("data_transfer")
model = net().double()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for inputs, targets in DataLoader(examples(40), batch_size=8, shuffle=True):
    inputs, targets = inputs.to(device, non_blocking=True), targets.to("cpu")
    count["data_transfer"] += 2
    inputs = inputs.to(torch.float64)
    model = model.to(dtype=torch.float64)
    loss = F.cross_entropy(model(inputs), targets)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    count.update(STEP)
    show(loss)
truth(count)
