"""Forward and backward happen in a closure inside Adam's step, as Lightning does it."""

import torch
from _tiny import counts, examples, net, truth
from torch.nn import functional as F
from torch.utils.data import DataLoader

count = counts()
model = net()
optimizer = torch.optim.Adam(model.parameters())
for _epoch in range(2):
    for inputs, targets in DataLoader(examples(40), batch_size=8, shuffle=True):
        count["data_loading"] += 1

        def closure(inputs=inputs, targets=targets):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(inputs), targets)
            count["forward_pass"] += 1
            loss.backward()
            count["backward_pass"] += 1
            return loss

        print("loss", optimizer.step(closure=closure).item().hex())
        count["steps"] += 1
truth(count)
