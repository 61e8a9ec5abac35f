"""Whole models are copied, pickled, saved and loaded while they train; the profiler leaves no attribute on them."""

import copy
import io
import pickle

import torch
from _tiny import STEP, counts, examples, show, truth
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(8, 16), nn.Linear(16, 3)

    def forward(self, x):
        return self.fc2(F.relu(self.fc1(x)))


count = counts()
model = Net()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
loader = DataLoader(examples(80), batch_size=8, shuffle=True)
for inputs, targets in loader:
    optimizer.zero_grad()
    loss = F.cross_entropy(model(inputs), targets)
    loss.backward()
    optimizer.step()
    count.update(STEP)
    show(loss)
    twin, its_optimizer = copy.deepcopy((model, optimizer))
    again = pickle.loads(pickle.dumps(twin))
    assert type(again) is Net
    assert sorted(vars(again)) == sorted(vars(model))
    assert pickle.loads(pickle.dumps(its_optimizer)).state_dict().keys() == optimizer.state_dict().keys()
    if count["steps"] == 5:
        model, optimizer = twin, its_optimizer
for thing in (model, model.fc1, optimizer, loader):
    print(type(thing).__qualname__, sorted(vars(thing)))
print(type(optimizer).step.__qualname__, len(iter(loader)))

torch.save({"model": model, "optimizer": optimizer}, "whole.pt")
print("needs", sorted(torch.serialization.get_unsafe_globals_in_checkpoint("whole.pt")))
full = torch.load("whole.pt", weights_only=False)["model"]
torch.save(model, "model.pt")
with torch.serialization.safe_globals([Net, nn.Linear]):
    listed = torch.load("model.pt", weights_only=True)
buffer = io.BytesIO()
torch.save(model.state_dict(), buffer)
buffer.seek(0)
model.load_state_dict(torch.load(buffer, weights_only=True))
assert all(torch.equal(p, q) for p, q in zip(full.parameters(), listed.parameters(), strict=True))
truth(count)
