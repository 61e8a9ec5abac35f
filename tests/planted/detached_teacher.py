"""A student that learns from a teacher whose outputs are detached, though they were computed with gradients."""

import copy

import torch
from torch import nn
from torch.nn.functional import mse_loss

STEPS = 120


def main() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    student = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 32))
    teacher = copy.deepcopy(student)
    optimizer = torch.optim.SGD(student.parameters(), lr=0.01)
    for _ in range(STEPS):
        image = torch.randn(512, 64)
        targets = [teacher(image + shift).detach() for shift in (-0.2, -0.1, 0.1, 0.2)]
        loss = mse_loss(student(image), torch.stack(targets).mean(0))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        torch._foreach_lerp_([each.data for each in teacher.parameters()], list(student.parameters()), 0.01)
    print(f"{loss.item():.4f}")


if __name__ == "__main__":
    main()
