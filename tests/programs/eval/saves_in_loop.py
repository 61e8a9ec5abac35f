"""The test loop saves images of its first batch: it is still one validation."""

import torch
from _tiny import EVALUATION, STEP, counts, examples, net, show, truth
from torch.nn import functional as F
from torch.utils.data import DataLoader

within = [f"validation_epoch/{part}" for part in ("data_loading", "forward_pass", "checkpointing")]
count = counts("validation_epoch", "checkpointing", *within)
model = net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
training, test = DataLoader(examples(40), batch_size=8), DataLoader(examples(24), batch_size=8)
for _epoch in range(3):
    for inputs, targets in training:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(inputs), targets)
        loss.backward()
        optimizer.step()
        count.update(STEP)
        show(loss)
    with torch.no_grad():
        for batch, (inputs, _) in enumerate(test):
            outputs = model(inputs)
            count.update(EVALUATION)
            if batch == 0:
                torch.save(outputs, "outputs.pt")
                count["validation_epoch/checkpointing"] += 1
    count["validation_epoch"] += 1
    torch.save(model.state_dict(), "model.pt")
    count["checkpointing"] += 1
truth(count)
