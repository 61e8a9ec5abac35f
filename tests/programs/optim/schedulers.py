"""Learning rate schedulers per step and per epoch, chained and alone; they warn if step was replaced."""

import torch
from _tiny import STEP, counts, examples, net, show, truth
from torch.nn import functional as F
from torch.optim import lr_scheduler
from torch.utils.data import DataLoader

count = counts()
model = net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
a_step = lr_scheduler.OneCycleLR(optimizer, max_lr=0.2, total_steps=20)
warm, cosine = lr_scheduler.LinearLR(optimizer, total_iters=2), lr_scheduler.CosineAnnealingLR(optimizer, T_max=8)
an_epoch = lr_scheduler.SequentialLR(optimizer, [warm, cosine], milestones=[2])
plateau = lr_scheduler.ReduceLROnPlateau(optimizer, patience=0)
for _epoch in range(3):
    for inputs, targets in DataLoader(examples(40), batch_size=8, shuffle=True):
        loss = F.cross_entropy(model(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        count.update(STEP)
        a_step.step()
        show(loss)
    an_epoch.step()
    plateau.step(loss.item())
    print("lr", optimizer.param_groups[0]["lr"].hex())
truth(count)
