"""A tqdm bar around the loader; its description changes at every step."""

import torch
from _tiny import STEP, counts, examples, net, truth
from torch.nn import functional as F
from torch.utils.data import DataLoader
from tqdm import tqdm

count = counts("validation_epoch/data_loading")
model = net()
optimizer = torch.optim.Adam(model.parameters())
train_loader, val_loader = DataLoader(examples(48), 8, shuffle=True), DataLoader(examples(16), 8)
for epoch in range(2):
    bar = tqdm(train_loader, desc=f"epoch {epoch}")
    for inputs, targets in bar:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(inputs), targets)
        loss.backward()
        optimizer.step()
        count.update(STEP)
        bar.set_postfix(loss=loss.item())
        tqdm.write(f"loss {loss.item().hex()}")
    with torch.no_grad():
        for inputs, targets in tqdm(val_loader):
            count["validation_epoch/data_loading"] += 1
            print("val", F.cross_entropy(model(inputs), targets).item().hex())
truth(count)
