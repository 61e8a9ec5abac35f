"""Checkpoints in the loop: of the best evaluation and of each epoch; one is loaded again at the end."""

import torch
from _tiny import EVALUATION, STEP, counts, examples, net, show, truth
from torch.nn import functional as F
from torch.utils.data import DataLoader

count = counts("validation_epoch/data_loading", "validation_epoch/forward_pass", "checkpointing")
model = net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loader, val_loader = DataLoader(examples(40), batch_size=8, shuffle=True), DataLoader(examples(20), batch_size=8)
best = float("inf")
for epoch in range(3):
    model.train()
    for inputs, targets in loader:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(inputs), targets)
        loss.backward()
        optimizer.step()
        count.update(STEP)
        show(loss)
    model.eval()
    total = 0.0
    with torch.no_grad():
        for inputs, targets in val_loader:
            total += F.cross_entropy(model(inputs), targets).item()
            count.update(EVALUATION)
    print("val", total.hex())
    if total < best:
        best = total
        torch.save(model.state_dict(), "best.pt")
        count["checkpointing"] += 1
    torch.save({"epoch": epoch, "model": model.state_dict(), "optimizer": optimizer.state_dict()}, f"epoch{epoch}.pt")
    count["checkpointing"] += 1
model.load_state_dict(torch.load("best.pt", weights_only=True))
with torch.no_grad():
    show(model(torch.ones(1, 8)).sum())
    count["validation_epoch/forward_pass"] += 1
truth(count)
