"""A whole training step captured in a graph and replayed for each batch; prints how many updates there were."""

import json

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

WARM_UP, BATCHES, ROWS = 5, 200, 64

kind = torch.accelerator.current_accelerator().type
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(256, 1024), nn.ReLU(), nn.Linear(1024, 1)).to(kind)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, capturable=True)
loader = DataLoader(TensorDataset(torch.randn(BATCHES * ROWS, 256)), batch_size=ROWS)
static = torch.zeros(ROWS, 256, device=kind)


def step() -> torch.Tensor:
    optimizer.zero_grad(set_to_none=True)
    loss = model(static).square().mean()
    loss.backward()
    optimizer.step()
    return loss


stream = torch.cuda.Stream()
stream.wait_stream(torch.cuda.current_stream())
with torch.cuda.stream(stream):
    for _ in range(WARM_UP):
        step()
torch.cuda.current_stream().wait_stream(stream)
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    loss = step()
for (inputs,) in loader:
    static.copy_(inputs)
    graph.replay()
torch.cuda.synchronize()
assert loss.isfinite()
(updates,) = {int(state["step"].item()) for state in optimizer.state.values()}
print(json.dumps(updates))
