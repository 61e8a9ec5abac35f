"""Language models on enwik8: endless loaders for both, one batch validated now and then, and text generated."""

import random

import torch
from _tiny import counts, show, truth
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

random.seed(0)
GRADIENT_ACCUMULATE_EVERY, VALIDATE_EVERY, GENERATE_EVERY, SEQ_LEN = 4, 3, 5, 8
count = counts("validation_epoch/data_loading")


def cycle(loader):
    while True:
        yield from loader


class TextSamplerDataset(Dataset):
    def __init__(self, data):
        self.data = data

    def __getitem__(self, index):
        start = torch.randint(0, len(self.data) - SEQ_LEN, (1,))
        return self.data[start : start + SEQ_LEN + 1].long()

    def __len__(self):
        return len(self.data) // SEQ_LEN


class Autoregressive(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Embedding(16, 8), nn.Linear(8, 16))

    @torch.no_grad()
    def generate(self, prompt, length):
        out = prompt
        for _ in range(length):
            logits = self.net(out)[:, -1]
            out = torch.cat([out, torch.multinomial(logits.softmax(-1), 1)], dim=-1)
        return out

    def forward(self, x):
        return F.cross_entropy(self.net(x[:, :-1]).transpose(1, 2), x[:, 1:])


data_train, data_val = torch.randint(16, (400,)), torch.randint(16, (100,))
val_dataset = TextSamplerDataset(data_val)
train_loader = cycle(DataLoader(TextSamplerDataset(data_train), batch_size=4))
val_loader = cycle(DataLoader(val_dataset, batch_size=4))
model = Autoregressive()
optim = torch.optim.Adam(model.parameters(), lr=1e-2)
for i in range(12):
    model.train()
    for _ in range(GRADIENT_ACCUMULATE_EVERY):
        batch = next(train_loader)
        count["data_loading"] += 1
        loss = model(batch)
        count["forward_pass"] += 1
        loss.backward()
        count["backward_pass"] += 1
    show(loss)
    torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
    optim.step()
    count["steps"] += 1
    optim.zero_grad()
    if i % VALIDATE_EVERY == 0:
        model.eval()
        with torch.no_grad():
            batch = next(val_loader)
            count["validation_epoch/data_loading"] += 1
            show(model(batch))
    if i % GENERATE_EVERY == 0:
        model.eval()
        sample = model.generate(random.choice(val_dataset)[None, :-1], 6)
        print(sample.tolist())
truth(count)
