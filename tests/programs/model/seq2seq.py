"""Encoder and decoder are two modules with an optimizer each, the decoder called token by token: forwards undefined."""

import torch
from _tiny import counts, show, truth
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

count = counts("validation_epoch/data_loading")
del count["forward_pass"]


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.gru = nn.Embedding(12, 8), nn.GRU(8, 8, batch_first=True)

    def forward(self, x):
        return self.gru(self.embedding(x))


class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.gru, self.out = nn.Embedding(12, 8), nn.GRU(8, 8, batch_first=True), nn.Linear(8, 12)

    def forward(self, x, hidden):
        output, hidden = self.gru(self.embedding(x), hidden)
        return self.out(output), hidden


encoder, decoder, criterion = Encoder(), Decoder(), nn.NLLLoss()
encoder_optimizer = torch.optim.Adam(encoder.parameters(), lr=1e-2)
decoder_optimizer = torch.optim.Adam(decoder.parameters(), lr=1e-2)
data = TensorDataset(torch.randint(1, 12, (32, 5)), torch.randint(1, 12, (32, 5)))
for _epoch in range(2):
    for source, target in DataLoader(data, batch_size=8, shuffle=True):
        count["data_loading"] += 1
        encoder_optimizer.zero_grad()
        decoder_optimizer.zero_grad()
        _, hidden = encoder(source)
        token, loss = torch.zeros(len(source), 1, dtype=torch.long), 0.0
        for t in range(target.size(1)):
            output, hidden = decoder(token, hidden)
            loss = loss + criterion(output[:, 0].log_softmax(1), target[:, t])
            token = target[:, t : t + 1]
        loss.backward()
        count["backward_pass"] += 1
        encoder_optimizer.step()
        decoder_optimizer.step()
        count["steps"] += 1
        show(loss)
    with torch.no_grad():
        for source, _ in DataLoader(data, batch_size=16):
            count["validation_epoch/data_loading"] += 1
            _, hidden = encoder(source)
            output, _ = decoder(torch.zeros(len(source), 1, dtype=torch.long), hidden)
            show(output.sum())
truth(count)
