"""Workers that take longer to hand over their small batches than to make them: the training would be faster alone."""

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Vectors(Dataset):
    def __init__(self, count: int) -> None:
        self.vectors = torch.randn(count, 32)

    def __len__(self) -> int:
        return len(self.vectors)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return dict.fromkeys(("query", "key", "value", "mask", "label"), self.vectors[index])


def main() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    loader = DataLoader(Vectors(4 * 1500), batch_size=4, num_workers=1)
    model = nn.Linear(32, 32)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for batch in loader:
        optimizer.zero_grad()
        loss = (model(batch["query"] * batch["mask"]) - batch["label"]).square().mean()
        loss.backward()
        optimizer.step()
    print(f"{loss.item():.4f}")


if __name__ == "__main__":
    main()
