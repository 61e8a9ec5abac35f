"""A training in which the accelerator is always busy. Its loss is read in ``each`` step, or in every ``tenth``.

The last line is the number of steps.
"""

import json
import sys

import torch
from torch import nn

STEPS = 300

how = sys.argv[1]
device = torch.accelerator.current_accelerator()
layer = nn.TransformerEncoderLayer(1024, 8, 4096, batch_first=True)
model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).to(device)
optimizer = torch.optim.AdamW(model.parameters(), 1e-4)
total = 0.0
for step in range(1, STEPS + 1):
    x_BTF = torch.randn(32, 256, 1024, device=device)
    loss = (model(x_BTF) - x_BTF).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if how == "each":
        total += float(loss)
    elif step % 10 == 0:
        print(f"{step} {loss:.4f}")
print(json.dumps(STEPS))
