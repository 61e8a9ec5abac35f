"""Distillation: a frozen teacher runs without gradient for each batch, before and after the student."""

import torch
from _tiny import EVALUATION, PASSES, counts, examples, net, show, truth
from torch.nn import functional as F
from torch.utils.data import DataLoader

count = counts("forward_without_grad", "validation_epoch/data_loading", "validation_epoch/forward_pass")
model = net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loader, val_loader = DataLoader(examples(40), batch_size=8, shuffle=True), DataLoader(examples(20), batch_size=8)
teacher = net().eval()
for _epoch in range(2):
    for i, (inputs, targets) in enumerate(loader):
        count["data_loading"] += 1
        optimizer.zero_grad()
        if i % 2:
            outputs = model(inputs)
            with torch.no_grad():
                wanted = teacher(inputs)
        else:
            with torch.no_grad():
                wanted = teacher(inputs)
            outputs = model(inputs)
        count["forward_without_grad"] += 1
        loss = F.cross_entropy(outputs, targets) + F.kl_div(outputs.log_softmax(1), wanted.softmax(1), reduction="sum")
        loss.backward()
        optimizer.step()
        count.update(PASSES)
        show(loss)
    with torch.no_grad():
        for inputs, targets in val_loader:
            show(F.cross_entropy(model(inputs), targets))
            count.update(EVALUATION)
truth(count)
