"""The untrained model is evaluated before the first step."""

import torch
from _tiny import EVALUATION, STEP, counts, examples, net, show, truth
from torch.nn import functional as F
from torch.utils.data import DataLoader

count = counts("validation_epoch/data_loading", "validation_epoch/forward_pass")
model = net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loader, val_loader = DataLoader(examples(40), batch_size=8, shuffle=True), DataLoader(examples(20), batch_size=8)


def evaluate():
    model.eval()
    with torch.no_grad():
        for inputs, targets in val_loader:
            show(F.cross_entropy(model(inputs), targets))
            count.update(EVALUATION)


evaluate()
for _epoch in range(2):
    model.train()
    for inputs, targets in loader:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(inputs), targets)
        loss.backward()
        optimizer.step()
        count.update(STEP)
        show(loss)
    evaluate()
truth(count)
