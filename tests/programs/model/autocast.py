"""bfloat16 autocast around forward and loss, in training and in evaluation."""

import torch
from _tiny import EVALUATION, PASSES, counts, examples, net, show, truth
from torch.nn import functional as F
from torch.utils.data import DataLoader

count = counts("validation_epoch/data_loading", "validation_epoch/forward_pass")
model = net()
optimizer = torch.optim.AdamW(model.parameters())
loader, val_loader = DataLoader(examples(40), batch_size=8, shuffle=True), DataLoader(examples(16), batch_size=8)
for _epoch in range(2):
    for inputs, targets in loader:
        count["data_loading"] += 1
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            outputs = model(inputs)
            loss = F.cross_entropy(outputs, targets)
        assert outputs.dtype is torch.bfloat16
        loss.backward()
        optimizer.step()
        count.update(PASSES)
        show(loss)
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        for inputs, targets in val_loader:
            show(F.cross_entropy(model(inputs), targets))
            count.update(EVALUATION)
truth(count)
