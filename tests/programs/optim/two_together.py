"""Sparse embeddings have their own optimizer; both step after every backward."""

import torch
from _tiny import STEP, counts, show, truth
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

count = counts()


class Recommender(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.head = nn.Embedding(50, 8, sparse=True), nn.Linear(8, 3)

    def forward(self, ids):
        return self.head(self.embedding(ids).mean(1))


model = Recommender()
optimizers = [torch.optim.SparseAdam(model.embedding.parameters()), torch.optim.AdamW(model.head.parameters())]
data = TensorDataset(torch.randint(50, (80, 4)), torch.randint(3, (80,)))
for ids, targets in DataLoader(data, batch_size=8, shuffle=True):
    loss = F.cross_entropy(model(ids), targets)
    for optimizer in optimizers:
        optimizer.zero_grad()
    loss.backward()
    for optimizer in optimizers:
        optimizer.step()
    count.update(STEP)
    show(loss)
truth(count)
