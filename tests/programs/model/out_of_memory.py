"""A batch too large raises inside the model and is tried again in halves; the failed call may count or not."""

import torch
from _tiny import counts, examples, show, truth
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader

count, failed = counts(), 0


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(16, 16)

    def forward(self, x):
        if len(x) > 6:
            raise RuntimeError("out of memory (not really)")
        return self.linear(x)


model = nn.Sequential(nn.Linear(8, 16), nn.Sequential(Attention(), nn.ReLU()), nn.Linear(16, 3))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for inputs, targets in DataLoader(examples(76), batch_size=8, shuffle=True):
    count["data_loading"] += 1
    optimizer.zero_grad()
    try:
        chunks = 1
        outputs = model(inputs)
        count["forward_pass"] += 1
        loss = F.cross_entropy(outputs, targets)
        loss.backward()
        count["backward_pass"] += 1
    except RuntimeError as error:
        print(error)
        failed += 1
        for x, y in zip(inputs.chunk(2), targets.chunk(2), strict=True):
            loss = F.cross_entropy(model(x), y) / 2
            count["forward_pass"] += 1
            loss.backward()
            count["backward_pass"] += 1
    optimizer.step()
    count["steps"] += 1
    show(loss)
count["forward_pass"] = [count["forward_pass"], count["forward_pass"] + failed]
truth(count)
