"""One optimizer per parameter, created with its first gradient, stepped and cleared inside the backward."""

import torch
from _tiny import STEP, counts, examples, show, truth
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader

count = counts()
model = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8), nn.Linear(8, 3))
optimizers = {}


def update(parameter):
    if parameter not in optimizers:
        optimizers[parameter] = torch.optim.Adam([parameter], foreach=False)
    optimizers[parameter].step()
    optimizers[parameter].zero_grad()


for parameter in model.parameters():
    parameter.register_post_accumulate_grad_hook(update)
for _epoch in range(2):
    for inputs, targets in DataLoader(examples(48), batch_size=8, shuffle=True):
        loss = F.cross_entropy(model(inputs), targets)
        loss.backward()
        count.update(STEP)
        show(loss)
print(len(optimizers), "optimizers")
truth(count)
