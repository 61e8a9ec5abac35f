"""DCGAN: discriminator and generator are updated in turn, one after the other for each batch."""

import torch
from _tiny import counts, examples, show, truth
from torch import nn
from torch.utils.data import DataLoader

count = counts()
netG = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 8))
netD = nn.Sequential(nn.Linear(8, 16), nn.LeakyReLU(0.2), nn.Linear(16, 1), nn.Sigmoid())
criterion = nn.BCELoss()
optimizerD = torch.optim.Adam(netD.parameters(), lr=2e-4, betas=(0.5, 0.999))
optimizerG = torch.optim.Adam(netG.parameters(), lr=2e-4, betas=(0.5, 0.999))
fixed_noise = torch.randn(4, 4)
for epoch in range(2):
    for i, (real, _) in enumerate(DataLoader(examples(40), batch_size=8, shuffle=True)):
        count["data_loading"] += 1
        netD.zero_grad()
        errD_real = criterion(netD(real), torch.ones(len(real), 1))
        errD_real.backward()
        fake = netG(torch.randn(len(real), 4))
        errD_fake = criterion(netD(fake.detach()), torch.zeros(len(real), 1))
        errD_fake.backward()
        optimizerD.step()
        count["steps"] += 1
        netG.zero_grad()
        errG = criterion(netD(fake), torch.ones(len(real), 1))
        errG.backward()
        optimizerG.step()
        count["forward_pass"] += 4
        count["backward_pass"] += 3
        print(f"[{epoch}][{i}]")
        show(errD_real + errD_fake)
        show(errG)
    with torch.no_grad():
        print(netG(fixed_noise).sum().item().hex())
truth(count)
