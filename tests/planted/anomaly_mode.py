"""A recurrent training with autograd's anomaly detection, which was left on after debugging."""

import torch
from torch import nn

STEPS = 60


class Cell(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.of_input, self.of_state = nn.Linear(16, 64), nn.Linear(64, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        state = torch.zeros(x.shape[1], 64)
        for each in x:
            state = torch.tanh(self.of_input(each) + self.of_state(state))
        return state


def main() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    torch.autograd.set_detect_anomaly(True)
    model = nn.Sequential(Cell(), nn.Linear(64, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(STEPS):
        loss = nn.functional.cross_entropy(model(torch.randn(20, 32, 16)), torch.randint(10, (32,)))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"{loss.item():.4f}")


if __name__ == "__main__":
    main()
