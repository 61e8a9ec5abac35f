"""PyTorch's word_language_model: clipping, p.data.add_, and no optimizer anywhere; evaluation each epoch."""

import torch
from _tiny import PASSES, counts, show, truth
from torch import nn

count = counts("metrics_computation", "validation_epoch/forward_pass")


class RNNModel(nn.Module):
    def __init__(self, tokens, size):
        super().__init__()
        self.drop, self.encoder = nn.Dropout(0.2), nn.Embedding(tokens, size)
        self.rnn, self.decoder = nn.GRU(size, size), nn.Linear(size, tokens)

    def forward(self, x, hidden):
        output, hidden = self.rnn(self.drop(self.encoder(x)), hidden)
        return self.decoder(self.drop(output)).view(-1, self.decoder.out_features), hidden


def get_batch(source, i):
    length = min(5, len(source) - 1 - i)
    return source[i : i + length], source[i + 1 : i + 1 + length].view(-1)


model, criterion = RNNModel(20, 8), nn.CrossEntropyLoss()
train_data, val_data = torch.randint(20, (32, 4)), torch.randint(20, (12, 4))
for _epoch in range(2):
    model.train()
    hidden = torch.zeros(1, 4, 8)
    for i in range(0, len(train_data) - 1, 5):
        data, targets = get_batch(train_data, i)
        model.zero_grad()
        output, hidden = model(data, hidden.detach())
        loss = criterion(output, targets)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.25)
        count["metrics_computation"] += 1
        for p in model.parameters():
            p.data.add_(p.grad, alpha=-0.5)
        count.update(PASSES)
        show(loss)
    model.eval()
    hidden = torch.zeros(1, 4, 8)
    with torch.no_grad():
        for i in range(0, len(val_data) - 1, 5):
            data, targets = get_batch(val_data, i)
            output, hidden = model(data, hidden)
            count["validation_epoch/forward_pass"] += 1
            show(criterion(output, targets))
truth(count)
