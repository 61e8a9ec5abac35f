"""Every third batch the model is evaluated on the first three batches of a loader."""

import torch
from _tiny import EVALUATION, STEP, counts, examples, net, show, truth
from torch.nn import functional as F
from torch.utils.data import DataLoader

count = counts("validation_epoch/data_loading", "validation_epoch/forward_pass")
model = net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loader, val_loader = DataLoader(examples(48), batch_size=8, shuffle=True), DataLoader(examples(40), batch_size=8)
for _epoch in range(2):
    for i, (inputs, targets) in enumerate(loader):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(inputs), targets)
        loss.backward()
        optimizer.step()
        count.update(STEP)
        show(loss)
        if i % 3 == 2:
            model.eval()
            with torch.no_grad():
                for k, (val_inputs, val_targets) in enumerate(val_loader):
                    show(F.cross_entropy(model(val_inputs), val_targets))
                    count.update(EVALUATION)
                    if k == 2:
                        break
            model.train()
truth(count)
