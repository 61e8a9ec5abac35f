"""Manual optimization in Lightning: the model is updated by every batch, its critic by every second one."""

import lightning
import torch
from tally import Classifier, Points, Tally, updates
from torch.utils.data import DataLoader

tally = Tally()
criterion = torch.nn.CrossEntropyLoss()


class TwoOptimizers(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.model = Classifier(tally)
        self.critic = Classifier(tally)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.model(inputs)

    def training_step(self, batch, batch_idx: int) -> None:
        inputs, targets = batch
        first, second = self.optimizers()
        self.train_once(first, criterion(self(inputs), targets))
        if batch_idx % 2:
            self.train_once(second, criterion(self.critic(inputs), 1 - targets))

    def train_once(self, optimizer, loss: torch.Tensor) -> None:
        optimizer.zero_grad()
        self.manual_backward(loss)
        optimizer.step()
        print(f"loss {loss.item().hex()}")

    def on_after_backward(self) -> None:
        tally.backward()

    def configure_optimizers(self) -> list[torch.optim.Optimizer]:
        return [torch.optim.Adam(self.model.parameters(), lr=1e-2), torch.optim.Adam(self.critic.parameters())]


lightning.seed_everything(0)
module = TwoOptimizers()
trainer = lightning.Trainer(
    accelerator="cpu",
    max_epochs=2,
    logger=False,
    enable_checkpointing=False,
    enable_model_summary=False,
    enable_progress_bar=False,
)
trainer.fit(module, DataLoader(Points(80), batch_size=8, shuffle=True, collate_fn=tally.collate))
tally.steps = updates(trainer.optimizers[0])
assert trainer.global_step == tally.steps + updates(trainer.optimizers[1])
tally.print()
