"""An infinite loss: GradScaler skips the step and halves its scale; a fused step is made, and updates nothing."""

import sys

import torch
from _tiny import counts, examples, net, show, truth
from torch.nn import functional as F
from torch.utils.data import DataLoader

count = counts("metrics_computation")
model = net()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2, fused="fused" in sys.argv)
scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
for i, (inputs, targets) in enumerate(DataLoader(examples(80), batch_size=8, shuffle=True)):
    count["data_loading"] += 1
    optimizer.zero_grad()
    loss = F.cross_entropy(model(inputs), targets)
    count["forward_pass"] += 1
    if i in (0, 4, 5):
        loss = loss * float("inf")
    before = model[0].weight.detach().clone()
    scaler.scale(loss).backward()
    count["backward_pass"] += 1
    scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    count["metrics_computation"] += 1
    scaler.step(optimizer)
    scaler.update()
    count["steps"] += not torch.equal(before, model[0].weight)
    print(i, "scale", scaler.get_scale())
    show(loss)
truth(count)
