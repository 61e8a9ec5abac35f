"""The loop calls model.forward(x): its parts are the outermost calls, and one method's calls are one forward."""

import torch
from _tiny import STEP, counts, examples, show, truth
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader

count = counts()


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(8, 16), nn.Linear(16, 3)

    def forward(self, x):
        return self.fc2(F.relu(self.fc1(x)))


model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for inputs, targets in DataLoader(examples(80), batch_size=8, shuffle=True):
    optimizer.zero_grad()
    loss = F.cross_entropy(model.forward(inputs), targets)
    loss.backward()
    optimizer.step()
    count.update(STEP)
    show(loss)
truth(count)
