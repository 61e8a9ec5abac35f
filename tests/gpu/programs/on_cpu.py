"""A training on the CPU of a machine with an accelerator; prints whether the accelerator was initialised."""

import json

import torch

model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for _ in range(200):
    optimizer.zero_grad()
    model(torch.randn(64, 8)).mean().backward()
    optimizer.step()
kind = torch.accelerator.current_accelerator().type
print(json.dumps(torch.get_device_module(kind).is_initialized()))
