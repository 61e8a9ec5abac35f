"""A subclass of Adam that calls super().step(), and an optimizer written from scratch."""

import torch
from _tiny import STEP, counts, examples, net, show, truth
from torch.nn import functional as F
from torch.utils.data import DataLoader


class CountingAdam(torch.optim.Adam):
    def step(self, closure=None):
        self.calls = getattr(self, "calls", 0) + 1
        return super().step(closure)


class SignSGD(torch.optim.Optimizer):
    def __init__(self, params, lr):
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                p.add_(p.grad.sign(), alpha=-group["lr"])


count = counts()
model = net()
adam, sign = CountingAdam(model[0].parameters(), lr=1e-2), SignSGD(model[2].parameters(), lr=1e-3)
for _epoch in range(2):
    for inputs, targets in DataLoader(examples(40), batch_size=8, shuffle=True):
        loss = F.cross_entropy(model(inputs), targets)
        model.zero_grad()
        loss.backward()
        adam.step()
        sign.step()
        count.update(STEP)
        show(loss)
print(adam.calls, "calls")
truth(count)
