"""An optimizer class of the program's own, with accumulation and an evaluation each epoch, as in Keras on torch."""

import torch
from _tiny import EVALUATION, counts, examples, net, show, truth
from torch.nn import functional as F
from torch.utils.data import DataLoader

count = counts("validation_epoch/data_loading", "validation_epoch/forward_pass")


class Momentum:
    def __init__(self, parameters):
        self.parameters = list(parameters)
        self.velocities = [torch.zeros_like(p) for p in self.parameters]

    @torch.no_grad()
    def apply(self):
        gradients = [p.grad for p in self.parameters]
        torch._foreach_mul_(self.velocities, 0.9)
        torch._foreach_add_(self.velocities, gradients)
        torch._foreach_add_(self.parameters, self.velocities, alpha=-0.1)


model = net()
optimizer = Momentum(model.parameters())
loader, val_loader = DataLoader(examples(96), batch_size=8, shuffle=True), DataLoader(examples(20), batch_size=8)
for _epoch in range(2):
    model.train()
    for batch, (inputs, targets) in enumerate(loader):
        count["data_loading"] += 1
        loss = F.cross_entropy(model(inputs), targets)
        count["forward_pass"] += 1
        loss.backward()
        count["backward_pass"] += 1
        if batch % 3 == 2:
            optimizer.apply()
            count["steps"] += 1
            for p in model.parameters():
                p.grad = None
        show(loss)
    model.eval()
    with torch.no_grad():
        for inputs, targets in val_loader:
            show(F.cross_entropy(model(inputs), targets))
            count.update(EVALUATION)
truth(count)
