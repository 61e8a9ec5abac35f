"""One step raises before it changes anything, and the training goes on: that was no update."""

import torch
from _tiny import counts, examples, net, show, truth
from torch.nn import functional as F
from torch.utils.data import DataLoader


class RefusesOnce(torch.optim.SGD):
    calls = 0

    def step(self, closure=None):
        self.calls += 1
        if self.calls == 4:
            raise FloatingPointError("the gradient is not finite")
        return super().step(closure)


count = counts()
model = net()
optimizer = RefusesOnce(model.parameters(), lr=0.1)
for inputs, targets in DataLoader(examples(80), batch_size=8, shuffle=True):
    count["data_loading"] += 1
    optimizer.zero_grad()
    loss = F.cross_entropy(model(inputs), targets)
    count["forward_pass"] += 1
    loss.backward()
    count["backward_pass"] += 1
    show(loss)
    try:
        optimizer.step()
    except FloatingPointError as error:
        print("skipped:", error)
    else:
        count["steps"] += 1
truth(count)
