"""FixMatch: a forward without gradient labels a batch of a second loader, which is then trained on."""

import torch
from _tiny import EVALUATION, counts, examples, net, show, truth
from torch.nn import functional as F
from torch.utils.data import DataLoader

count = counts("forward_without_grad", "validation_epoch/data_loading", "validation_epoch/forward_pass")
model = net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
labelled, unlabelled = DataLoader(examples(40), 8, shuffle=True), DataLoader(examples(48), 8, shuffle=True)
val_loader = DataLoader(examples(16), 8)
for _epoch in range(2):
    unlabelled_batches = iter(unlabelled)
    for inputs, targets in labelled:
        noise, _ = next(unlabelled_batches)
        count["data_loading"] += 2
        with torch.no_grad():
            sure, guess = model(noise).softmax(1).max(1)
        count["forward_without_grad"] += 1
        supervised = F.cross_entropy(model(inputs), targets)
        consistent = F.cross_entropy(model(noise + 0.1 * torch.randn_like(noise)), guess, reduction="none")
        count["forward_pass"] += 2
        loss = supervised + (consistent * (sure > 0.4)).mean()
        optimizer.zero_grad()
        loss.backward()
        count["backward_pass"] += 1
        optimizer.step()
        count["steps"] += 1
        show(loss)
    with torch.no_grad():
        for inputs, targets in val_loader:
            show(F.cross_entropy(model(inputs), targets))
            count.update(EVALUATION)
truth(count)
