"""Training makes its own batches; the only DataLoader belongs to the evaluation."""

import torch
from _tiny import EVALUATION, PASSES, counts, examples, net, show, truth
from torch.nn import functional as F
from torch.utils.data import DataLoader

count = counts("validation_epoch/data_loading", "validation_epoch/forward_pass")
model = net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
val_loader = DataLoader(examples(24), batch_size=8)
for step in range(12):
    inputs, targets = torch.randn(8, 8), torch.randint(3, (8,))
    loss = F.cross_entropy(model(inputs), targets)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    count.update(PASSES)
    show(loss)
    if step % 4 == 3:
        with torch.no_grad():
            for inputs, targets in val_loader:
                show(F.cross_entropy(model(inputs), targets))
                count.update(EVALUATION)
truth(count)
