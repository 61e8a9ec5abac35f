"""The loop of every tutorial."""

import torch
from _tiny import STEP, counts, examples, net, show, truth
from torch import nn
from torch.utils.data import DataLoader

count = counts()
model, criterion = net(), nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
loader = DataLoader(examples(44), batch_size=8, shuffle=True)
for _epoch in range(3):
    for inputs, targets in loader:
        optimizer.zero_grad()
        outputs = model(inputs)
        loss = criterion(outputs, targets)
        loss.backward()
        optimizer.step()
        count.update(STEP)
        show(loss)
truth(count)
