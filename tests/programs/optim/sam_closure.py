"""The outer optimizer's step evaluates a closure and calls the step of the inner one: one update, not two."""

import torch
from _sam import SAM
from _tiny import counts, examples, net, show, truth
from torch.nn import functional as F
from torch.utils.data import DataLoader

count = counts()
model = net()
optimizer = SAM(model.parameters(), torch.optim.SGD, lr=0.1, momentum=0.9)
for _epoch in range(2):
    for inputs, targets in DataLoader(examples(40), batch_size=8, shuffle=True):
        count["data_loading"] += 1

        def closure(inputs=inputs, targets=targets):
            loss = F.cross_entropy(model(inputs), targets)
            count["forward_pass"] += 1
            loss.backward()
            count["backward_pass"] += 1
            return loss

        loss = closure()
        optimizer.step(closure)
        count["steps"] += 1
        optimizer.zero_grad()
        show(loss)
truth(count)
