"""MoCo: the momentum encoder runs without gradient inside the model's own forward."""

import copy

import torch
from _tiny import STEP, counts, examples, net, show, truth
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader

count = counts()


class MoCo(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder_q = net()
        self.encoder_k = copy.deepcopy(self.encoder_q).requires_grad_(False)
        self.register_buffer("queue", F.normalize(torch.randn(3, 16), dim=0))

    def forward(self, im_q, im_k):
        q = F.normalize(self.encoder_q(im_q), dim=1)
        with torch.no_grad():
            for p_q, p_k in zip(self.encoder_q.parameters(), self.encoder_k.parameters(), strict=True):
                p_k.data = p_k.data * 0.99 + p_q.data * 0.01
            k = F.normalize(self.encoder_k(im_k), dim=1)
        logits = torch.cat([(q * k).sum(1, keepdim=True), q @ self.queue.clone()], dim=1)
        self.queue = torch.cat([k.T, self.queue], dim=1)[:, :16]
        return logits / 0.07, torch.zeros(len(logits), dtype=torch.long)


model, criterion = MoCo(), nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(model.encoder_q.parameters(), lr=0.03, momentum=0.9, weight_decay=1e-4)
for images, _ in DataLoader(examples(80), batch_size=8, shuffle=True):
    output, target = model(im_q=images, im_k=images + 0.1 * torch.randn_like(images))
    loss = criterion(output, target)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    count.update(STEP)
    show(loss)
truth(count)
