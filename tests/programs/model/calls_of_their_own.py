"""Models that replace __call__ without torch's, as those of gpytorch do: in a base class, in a subclass, in a mixin."""

import torch
from _tiny import counts, examples, show, truth
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader

count = counts()


class Base(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(8, 16), nn.Linear(16, 3)

    def __call__(self, *inputs, **named):
        return self.forward(*inputs, **named)

    def forward(self, x):
        return self.fc2(F.relu(F.linear(x, self.fc1.weight, self.fc1.bias)))


class Net(Base):
    def __call__(self, x):
        if self.training:
            return super().__call__(x)
        with torch.no_grad():
            return super().__call__(x).softmax(-1)


class Called:
    def __call__(self, x):
        return self.forward(x)


class Mixed(Called, nn.Linear):
    pass


first, second, criterion = Net(), Mixed(3, 3), nn.CrossEntropyLoss()
optimizer = torch.optim.SGD([*first.parameters(), *second.parameters()], lr=0.1)
for inputs, targets in DataLoader(examples(80), batch_size=8, shuffle=True):
    count["data_loading"] += 1
    optimizer.zero_grad()
    loss = criterion(second(first(inputs)), targets)
    count["forward_pass"] += 2
    loss.backward()
    count["backward_pass"] += 1
    optimizer.step()
    count["steps"] += 1
    show(loss)
print(Net.__call__.__qualname__, isinstance(first, Base))
truth(count)
