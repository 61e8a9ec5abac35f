"""A function cuts batches out of a memmap: there is no DataLoader."""

import numpy as np
import torch
from _tiny import PASSES, counts, show, truth
from torch import nn
from torch.nn import functional as F

count = counts()
np.random.default_rng(0).integers(0, 20, 2000, dtype=np.uint16).tofile("train.bin")


def get_batch():
    data = np.memmap("train.bin", dtype=np.uint16, mode="r")
    starts = torch.randint(len(data) - 9, (4,))
    x = torch.stack([torch.from_numpy(data[i : i + 8].astype(np.int64)) for i in starts])
    y = torch.stack([torch.from_numpy(data[i + 1 : i + 9].astype(np.int64)) for i in starts])
    return x, y


model = nn.Sequential(nn.Embedding(20, 8), nn.Linear(8, 20))
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(12):
    x, y = get_batch()
    logits = model(x)
    loss = F.cross_entropy(logits.flatten(0, 1), y.flatten())
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()
    count.update(PASSES)
    show(loss)
truth(count)
