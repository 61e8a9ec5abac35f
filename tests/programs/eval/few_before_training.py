"""A loss estimated from a few batches before the first step and after every second, by a function without a loader."""

import torch
from _tiny import PASSES, counts, net, show, truth
from torch.nn import functional as F

count = counts("validation_epoch/forward_pass")
inputs, targets = torch.randn(64, 8), torch.randint(3, (64,))


def get_batch():
    at = torch.randint(64, (8,))
    return inputs[at], targets[at]


@torch.no_grad()
def estimate_loss():
    model.eval()
    total = 0.0
    for _ in range(2):
        x, y = get_batch()
        total += F.cross_entropy(model(x), y)
        count["validation_epoch/forward_pass"] += 1
    model.train()
    show(total)


model = net()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
for step in range(6):
    if step % 2 == 0:
        estimate_loss()
    x, y = get_batch()
    loss = F.cross_entropy(model(x), y)
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()
    count.update(PASSES)
    show(loss)
truth(count)
