"""An evaluation with model.eval() but without no_grad: its forwards may count as training or not."""

import torch
from _tiny import STEP, counts, examples, net, show, truth
from torch.nn import functional as F
from torch.utils.data import DataLoader

count = counts()
model = net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loader, val_loader = DataLoader(examples(40), batch_size=8, shuffle=True), DataLoader(examples(20), batch_size=8)
evaluated = 0
for _epoch in range(2):
    model.train()
    for inputs, targets in loader:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(inputs), targets)
        loss.backward()
        optimizer.step()
        count.update(STEP)
        show(loss)
    model.eval()
    for inputs, targets in val_loader:
        evaluated += 1
        show(F.cross_entropy(model(inputs), targets))
count["data_loading+validation_epoch/data_loading"] = count["data_loading"] + evaluated
for name in ("data_loading", "forward_pass"):
    count[name] = [count[name], count[name] + evaluated]
truth(count)
