"""An exponential moving average of the weights at every step, evaluated beside the model."""

import torch
from _tiny import STEP, counts, examples, net, show, truth
from torch.nn import functional as F
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.data import DataLoader

count = counts("ema_update", "validation_epoch/data_loading", "validation_epoch/forward_pass")
model = net()
ema = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.99))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loader, val_loader = DataLoader(examples(40), batch_size=8, shuffle=True), DataLoader(examples(16), batch_size=8)
for _epoch in range(2):
    for inputs, targets in loader:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(inputs), targets)
        loss.backward()
        optimizer.step()
        count.update(STEP)
        ema.update_parameters(model)
        count["ema_update"] += 1
        show(loss)
    with torch.no_grad():
        for inputs, targets in val_loader:
            count["validation_epoch/data_loading"] += 1
            show(F.cross_entropy(model(inputs), targets))
            show(F.cross_entropy(ema(inputs), targets))
            count["validation_epoch/forward_pass"] += 2
truth(count)
