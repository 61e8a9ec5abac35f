"""Three folds, each with a new model, optimizer and loaders, and an evaluation after its training."""

import torch
from _tiny import EVALUATION, STEP, counts, examples, net, show, truth
from torch.nn import functional as F
from torch.utils.data import DataLoader, Subset

count = counts("validation_epoch/data_loading", "validation_epoch/forward_pass")
data = examples(60)
for fold in range(3):
    held_out = range(fold * 20, fold * 20 + 20)
    train_loader = DataLoader(Subset(data, [i for i in range(60) if i not in held_out]), batch_size=8, shuffle=True)
    val_loader = DataLoader(Subset(data, list(held_out)), batch_size=8)
    model = net()
    optimizer = torch.optim.Adam(model.parameters())
    for inputs, targets in train_loader:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(inputs), targets)
        loss.backward()
        optimizer.step()
        count.update(STEP)
        show(loss)
    model.eval()
    with torch.no_grad():
        for inputs, targets in val_loader:
            show(F.cross_entropy(model(inputs), targets))
            count.update(EVALUATION)
truth(count)
