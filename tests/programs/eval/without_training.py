"""No training at all: a model is loaded and evaluated."""

import torch
from _tiny import counts, examples, net, show, truth
from torch.nn import functional as F
from torch.utils.data import DataLoader

count = counts("data_loading+validation_epoch/data_loading")
model = net()
val_loader = DataLoader(examples(80), batch_size=8)
model.eval()
with torch.no_grad():
    for inputs, targets in val_loader:
        count["data_loading+validation_epoch/data_loading"] += 1
        show(F.cross_entropy(model(inputs), targets))
del count["data_loading"]
truth(count)
