"""The user opens torch.profiler and marks ranges: its records are unchanged."""

import torch
from _tiny import STEP, counts, examples, net, show, truth
from torch.nn import functional as F
from torch.profiler import ProfilerActivity, profile, record_function
from torch.utils.data import DataLoader

count = counts()
model = net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as prof:
    for inputs, targets in DataLoader(examples(40), batch_size=8):
        with record_function("my_forward"):
            loss = F.cross_entropy(model(inputs), targets)
        optimizer.zero_grad()
        with record_function("my_backward"):
            loss.backward()
        optimizer.step()
        count.update(STEP)
        show(loss)
        prof.step()
for event in sorted(prof.key_averages(), key=lambda event: event.key):
    print(event.key, event.count)
truth(count)
