"""An evaluation function under inference_mode, called every second step out of the epoch's own loop."""

import torch
from _tiny import counts, examples, net, show, truth
from torch.nn import functional as F
from torch.utils.data import DataLoader

count = counts("validation_epoch/data_loading", "validation_epoch/forward_pass")
model = net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loader, val_loader = DataLoader(examples(40), batch_size=8, shuffle=True), DataLoader(examples(20), batch_size=8)


@torch.inference_mode()
def evaluate():
    model.eval()
    for inputs, targets in val_loader:
        count["validation_epoch/data_loading"] += 1
        show(F.cross_entropy(model(inputs), targets))
        count["validation_epoch/forward_pass"] += 1
    model.train()


for _epoch in range(2):
    for inputs, targets in loader:
        count["data_loading"] += 1
        optimizer.zero_grad()
        loss = F.cross_entropy(model(inputs), targets)
        count["forward_pass"] += 1
        loss.backward()
        count["backward_pass"] += 1
        optimizer.step()
        count["steps"] += 1
        show(loss)
        if count["steps"] % 2 == 0:
            evaluate()
truth(count)
