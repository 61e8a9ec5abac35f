"""A data set of 312,500,000 examples, of which five batches are read."""

import torch
from _tiny import STEP, counts, net, show, truth
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset


class Huge(Dataset):
    def __len__(self):
        return 312_500_000

    def __getitem__(self, index):
        return torch.randn(8), index % 3


count = counts()
model = net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loader = DataLoader(Huge(), batch_size=1)
print(len(loader), "batches")
for step, (inputs, targets) in enumerate(loader):
    loss = F.cross_entropy(model(inputs), targets)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    count.update(STEP)
    show(loss)
    if step == 4:
        break
truth(count)
