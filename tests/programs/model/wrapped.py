"""Weight and spectral norm compute weights with their own modules; DataParallel wraps everything."""

import torch
from _tiny import STEP, counts, examples, show, truth
from torch import nn
from torch.nn import functional as F
from torch.nn.utils.parametrizations import spectral_norm, weight_norm
from torch.utils.data import DataLoader

count = counts()
inner = nn.Sequential(weight_norm(nn.Linear(8, 16)), nn.ReLU(), spectral_norm(nn.Linear(16, 3)))
model = nn.DataParallel(inner)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for inputs, targets in DataLoader(examples(80), batch_size=8, shuffle=True):
    optimizer.zero_grad()
    loss = F.cross_entropy(model(inputs), targets)
    loss.backward()
    optimizer.step()
    count.update(STEP)
    show(loss)
truth(count)
