"""The model overrides __call__, the loss is a module, and hooks are registered on one module and on all."""

import torch
from _tiny import STEP, counts, examples, show, truth
from torch import nn
from torch.nn import functional as F
from torch.nn.modules.module import register_module_forward_hook, register_module_full_backward_hook
from torch.utils.data import DataLoader

count = counts()
seen = {"own": 0, "hook": 0, "all": 0, "backward": 0}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(8, 16), nn.Linear(16, 3)

    def __call__(self, *args, **kwargs):
        seen["own"] += 1
        return super().__call__(*args, **kwargs)

    def forward(self, x):
        return self.fc2(F.relu(self.fc1(x)))


def note(name):
    def hook(*_):
        seen[name] += 1

    return hook


model, criterion = Net(), nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2.0, 3.0]))
model.fc1.register_forward_hook(note("hook"))
handles = register_module_forward_hook(note("all")), register_module_full_backward_hook(note("backward"))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for inputs, targets in DataLoader(examples(80), batch_size=8, shuffle=True):
    optimizer.zero_grad()
    loss = criterion(model(inputs), targets)
    loss.backward()
    optimizer.step()
    count.update(STEP)
    show(loss)
print(seen)
truth(count)
