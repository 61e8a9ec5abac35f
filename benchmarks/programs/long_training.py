"""An unmodified training of many epochs with validation, workers and checkpoints: ``long_training.py SECONDS``.

It ends by itself after that time. ``benchmarks.soak`` runs it with everything on.
"""

import io
import sys
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

WIDTH, LAYERS, WORDS, CLASSES, LENGTH, BATCH = 32, 2, 1000, 10, 12, 16


class Classifier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(WORDS, WIDTH)
        layer = nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False)
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, words_BT: torch.Tensor) -> torch.Tensor:
        return self.head(self.encoder(self.embedding(words_BT)).mean(1))


def rows(count: int) -> TensorDataset:
    return TensorDataset(torch.randint(WORDS, (count, LENGTH)), torch.randint(CLASSES, (count,)))


def main(train_s: float) -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model, criterion = Classifier(), nn.CrossEntropyLoss()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1000)
    averaged = torch.optim.swa_utils.AveragedModel(model)
    loader = DataLoader(rows(200 * BATCH), BATCH, shuffle=True, num_workers=1, persistent_workers=True)
    validation = DataLoader(rows(20 * BATCH), BATCH)
    end_s, epoch = time.monotonic() + train_s, 0
    while time.monotonic() < end_s:
        model.train()
        for words, labels in loader:
            optimizer.zero_grad()
            loss = criterion(model(words), labels)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            averaged.update_parameters(model)
            time.sleep(0.005)  # leaves the machine to others
            if time.monotonic() >= end_s:
                break
        model.eval()
        with torch.no_grad():
            total = sum(criterion(model(words), labels).item() for words, labels in validation)
        torch.save(model.state_dict(), io.BytesIO())
        epoch += 1
        print(f"epoch {epoch}: {total / len(validation):.4f}", flush=True)


if __name__ == "__main__":
    main(float(sys.argv[1]))
