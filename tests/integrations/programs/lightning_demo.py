"""Lightning's BoringModel: closures, a sanity check before the first step, validation twice an epoch, checkpoints."""

import lightning
import torch
from lightning.pytorch.demos.boring_classes import BoringModel, RandomDataset
from tally import Tally
from torch.utils.data import DataLoader

tally = Tally()


class Demo(BoringModel):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        tally.forward()
        return super().forward(x)

    def on_after_backward(self) -> None:
        tally.backward()

    def on_train_batch_end(self, outputs, batch, batch_idx: int) -> None:
        print(f"loss {outputs['loss'].item().hex()}")

    def train_dataloader(self) -> DataLoader:
        return DataLoader(RandomDataset(32, 16), shuffle=True, collate_fn=tally.collate)

    def val_dataloader(self) -> DataLoader:
        return DataLoader(RandomDataset(32, 6), batch_size=2, collate_fn=tally.collate_for_evaluation)

    def on_validation_epoch_end(self) -> None:
        print(f"validated at {self.trainer.global_step}")


lightning.seed_everything(0)
trainer = lightning.Trainer(
    accelerator="cpu", max_epochs=3, val_check_interval=0.5, logger=False, enable_progress_bar=False
)
trainer.fit(Demo())
tally.steps = trainer.global_step
tally.print()
