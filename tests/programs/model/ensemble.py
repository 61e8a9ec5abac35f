"""Three models with an optimizer each learn from the same batch, one after the other."""

import torch
from _tiny import counts, examples, net, show, truth
from torch.nn import functional as F
from torch.utils.data import DataLoader

count = counts()
models = [net() for _ in range(3)]
optimizers = [torch.optim.SGD(model.parameters(), lr=0.1) for model in models]
for inputs, targets in DataLoader(examples(80), batch_size=8, shuffle=True):
    count["data_loading"] += 1
    for model, optimizer in zip(models, optimizers, strict=True):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(inputs), targets)
        count["forward_pass"] += 1
        loss.backward()
        count["backward_pass"] += 1
        optimizer.step()
        show(loss)
    count["steps"] += 1
truth(count)
