"""A training without any call of the profiler; prints all bits of its losses."""

import json
import sys

import torch

torch.manual_seed(0)
torch.use_deterministic_algorithms(True, warn_only=True)
kind = torch.accelerator.current_accelerator().type
model = torch.nn.Sequential(torch.nn.Linear(512, 2048), torch.nn.ReLU(), torch.nn.Linear(2048, 1)).to(kind)
if "compiled" in sys.argv:
    model.compile(mode="reduce-overhead")
optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
x_BF = torch.randn(4096, 512)
data = torch.utils.data.TensorDataset(x_BF, x_BF.sum(1, keepdim=True))
loader = torch.utils.data.DataLoader(data, batch_size=64, num_workers=2 * ("workers" in sys.argv))
losses = []
for _ in range(2):
    for inputs, targets in loader:
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(inputs.to(kind)), targets.to(kind))
        loss.backward()
        optimizer.step()
        losses.append(loss.detach().clone())
print(json.dumps([loss.item().hex() for loss in losses]))
