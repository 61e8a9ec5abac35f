"""Neural style transfer: LBFGS changes the image, the network stands still; loss modules sit between its layers."""

import torch
from _tiny import counts, show, truth
from torch import nn
from torch.nn import functional as F

count = counts()


class ContentLoss(nn.Module):
    def __init__(self, target):
        super().__init__()
        self.target = target.detach()

    def forward(self, x):
        self.loss = F.mse_loss(x, self.target)
        return x


features = [nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 4, 3)]
content, image = torch.rand(1, 3, 12, 12), torch.rand(1, 3, 12, 12).requires_grad_(True)
with torch.no_grad():
    target = nn.Sequential(*features)(content)
content_loss = ContentLoss(target)
model = nn.Sequential(*features, content_loss).eval().requires_grad_(False)
optimizer = torch.optim.LBFGS([image], tolerance_grad=0, tolerance_change=0)
run = [0]
while run[0] <= 60:

    def closure():
        with torch.no_grad():
            image.clamp_(0, 1)
        optimizer.zero_grad()
        model(image)
        count["forward_pass"] += 1
        loss = 1e3 * content_loss.loss
        loss.backward()
        count["backward_pass"] += 1
        run[0] += 1
        show(loss)
        return loss

    optimizer.step(closure)
    count["steps"] += 1
truth(count)
