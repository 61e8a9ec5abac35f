"""What names a device is a transfer; what names a dtype alone is none."""

import torch
from _tiny import counts, examples, net, show, truth
from torch.nn import functional as F
from torch.utils.data import DataLoader

device = torch.device("cpu")
count = counts("data_transfer")
model = net().double()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for inputs, targets in DataLoader(examples(40), batch_size=8, shuffle=True):
    count["data_loading"] += 1
    inputs, targets = inputs.to(device, non_blocking=True), targets.to("cpu")
    count["data_transfer"] += 2
    inputs = inputs.to(torch.float64)
    model = model.to(dtype=torch.float64)
    loss = F.cross_entropy(model(inputs), targets)
    count["forward_pass"] += 1
    optimizer.zero_grad()
    loss.backward()
    count["backward_pass"] += 1
    optimizer.step()
    count["steps"] += 1
    show(loss)
truth(count)
