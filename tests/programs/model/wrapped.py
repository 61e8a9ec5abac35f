"""Weight and spectral norm compute weights with modules of their own; DataParallel wraps it all."""

import torch
from _tiny import counts, examples, show, truth
from torch import nn
from torch.nn import functional as F
from torch.nn.utils.parametrizations import spectral_norm, weight_norm
from torch.utils.data import DataLoader

count = counts()
inner = nn.Sequential(weight_norm(nn.Linear(8, 16)), nn.ReLU(), spectral_norm(nn.Linear(16, 3)))
model = nn.DataParallel(inner)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for inputs, targets in DataLoader(examples(80), batch_size=8, shuffle=True):
    count["data_loading"] += 1
    optimizer.zero_grad()
    loss = F.cross_entropy(model(inputs), targets)
    count["forward_pass"] += 1
    loss.backward()
    count["backward_pass"] += 1
    optimizer.step()
    count["steps"] += 1
    show(loss)
truth(count)
