"""The loop of every tutorial."""

import torch
from _tiny import counts, examples, net, show, truth
from torch import nn
from torch.utils.data import DataLoader

count = counts()
model, criterion = net(), nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
loader = DataLoader(examples(44), batch_size=8, shuffle=True)
for _epoch in range(3):
    for inputs, targets in loader:
        count["data_loading"] += 1
        optimizer.zero_grad()
        outputs = model(inputs)
        count["forward_pass"] += 1
        loss = criterion(outputs, targets)
        loss.backward()
        count["backward_pass"] += 1
        optimizer.step()
        count["steps"] += 1
        show(loss)
truth(count)
