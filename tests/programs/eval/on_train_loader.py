"""Accuracy on the training data: the same loader is iterated again without gradient."""

import torch
from _tiny import counts, examples, net, show, truth
from torch.nn import functional as F
from torch.utils.data import DataLoader

count = counts("validation_epoch/data_loading", "validation_epoch/forward_pass")
model = net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loader = DataLoader(examples(44), batch_size=8, shuffle=True)
for _epoch in range(2):
    model.train()
    for inputs, targets in loader:
        count["data_loading"] += 1
        optimizer.zero_grad()
        loss = F.cross_entropy(model(inputs), targets)
        count["forward_pass"] += 1
        loss.backward()
        count["backward_pass"] += 1
        optimizer.step()
        count["steps"] += 1
        show(loss)
    with torch.no_grad():
        for inputs, targets in loader:
            count["validation_epoch/data_loading"] += 1
            show((model(inputs).argmax(1) == targets).float().mean())
            count["validation_epoch/forward_pass"] += 1
truth(count)
