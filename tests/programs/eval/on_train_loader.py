"""Accuracy on the training data: the same loader is iterated again without gradient."""

import torch
from _tiny import EVALUATION, STEP, counts, examples, net, show, truth
from torch.nn import functional as F
from torch.utils.data import DataLoader

count = counts("validation_epoch/data_loading", "validation_epoch/forward_pass")
model = net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loader = DataLoader(examples(44), batch_size=8, shuffle=True)
for _epoch in range(2):
    model.train()
    for inputs, targets in loader:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(inputs), targets)
        loss.backward()
        optimizer.step()
        count.update(STEP)
        show(loss)
    with torch.no_grad():
        for inputs, targets in loader:
            show((model(inputs).argmax(1) == targets).float().mean())
            count.update(EVALUATION)
truth(count)
