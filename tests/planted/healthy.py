"""A small convolutional network on random pictures, without a fault."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

EPOCHS, BATCH = 4, 64


def make_model() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(16, 64, 3, padding=1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(4),
        nn.Flatten(),
        nn.Linear(1024, 10),
    )


def main() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    dataset = TensorDataset(torch.randn(2560, 3, 16, 16), torch.randint(10, (2560,)))
    loader = DataLoader(dataset, batch_size=BATCH, shuffle=True)
    model = make_model()
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for epoch in range(EPOCHS):
        total = 0.0
        for images, labels in loader:
            optimizer.zero_grad()
            loss = criterion(model(images), labels)
            loss.backward()
            optimizer.step()
            total += loss.item()
        print(f"epoch {epoch}: {total / len(loader):.4f}")


if __name__ == "__main__":
    main()
