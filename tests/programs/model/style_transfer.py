"""Fast neural style: a frozen network judges the output inside the loss. How many forwards that is, nobody can say."""

import torch
from _tiny import counts, show, truth
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

count = counts("checkpointing")
del count["forward_pass"]


def gram_matrix(y):
    features = y.flatten(2)
    return features.bmm(features.transpose(1, 2)) / features[0].numel()


transformer = nn.Sequential(
    nn.Conv2d(3, 4, 3, padding=1), nn.InstanceNorm2d(4), nn.ReLU(), nn.Conv2d(4, 3, 3, padding=1)
)
vgg = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 4, 3)).requires_grad_(False)
optimizer = torch.optim.Adam(transformer.parameters(), lr=1e-3)
gram_style = gram_matrix(vgg(torch.rand(1, 3, 10, 10).repeat(4, 1, 1, 1)))
for _epoch in range(2):
    transformer.train()
    for batch_id, (x,) in enumerate(DataLoader(TensorDataset(torch.rand(20, 3, 10, 10)), batch_size=4, shuffle=True)):
        count["data_loading"] += 1
        optimizer.zero_grad()
        y = transformer(x)
        features_y, features_x = vgg(y), vgg(x)
        content_loss = 1e2 * F.mse_loss(features_y, features_x)
        total_loss = content_loss + 1e3 * F.mse_loss(gram_matrix(features_y), gram_style)
        total_loss.backward()
        count["backward_pass"] += 1
        optimizer.step()
        count["steps"] += 1
        show(total_loss)
        if (batch_id + 1) % 3 == 0:
            transformer.eval()
            torch.save(transformer.state_dict(), "ckpt.pth")
            count["checkpointing"] += 1
            transformer.train()
truth(count)
