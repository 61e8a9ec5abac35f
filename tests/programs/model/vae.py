"""A variational autoencoder: training, a test each epoch, and samples from the decoder alone."""

import torch
from _tiny import STEP, counts, examples, show, truth
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader

count = counts("validation_epoch/data_loading")


class VAE(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1, self.fc21, self.fc22 = nn.Linear(8, 16), nn.Linear(16, 2), nn.Linear(16, 2)
        self.fc3, self.fc4 = nn.Linear(2, 16), nn.Linear(16, 8)

    def encode(self, x):
        h = F.relu(self.fc1(x))
        return self.fc21(h), self.fc22(h)

    def decode(self, z):
        return self.fc4(F.relu(self.fc3(z)))

    def forward(self, x):
        mu, logvar = self.encode(x)
        return self.decode(mu + torch.randn_like(mu) * (0.5 * logvar).exp()), mu, logvar


def loss_function(recon_x, x, mu, logvar):
    return F.mse_loss(recon_x, x, reduction="sum") - 0.5 * torch.sum(1 + logvar - mu.pow(2) - logvar.exp())


model = VAE()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
train_loader, test_loader = DataLoader(examples(40), batch_size=8, shuffle=True), DataLoader(examples(20), batch_size=8)
for _epoch in range(2):
    model.train()
    for data, _ in train_loader:
        optimizer.zero_grad()
        recon, mu, logvar = model(data)
        loss = loss_function(recon, data, mu, logvar)
        loss.backward()
        optimizer.step()
        count.update(STEP)
        show(loss)
    model.eval()
    with torch.no_grad():
        for data, _ in test_loader:
            count["validation_epoch/data_loading"] += 1
            show(loss_function(model(data)[0], data, mu, logvar))
    with torch.no_grad():
        show(model.decode(torch.randn(4, 2)).sum())
truth(count)
