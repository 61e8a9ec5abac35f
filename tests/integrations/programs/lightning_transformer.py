"""Lightning's demo transformer: two batches to an update, clipped gradients, a loader of unknown length."""

import lightning
import torch
from lightning.pytorch.demos import LightningTransformer
from tally import Tally
from torch.utils.data import DataLoader, IterableDataset

tally = Tally()


class Sequences(IterableDataset):
    def __iter__(self):
        generator = torch.Generator().manual_seed(0)
        for _ in range(22):
            tokens = torch.randint(40, (9,), generator=generator)
            yield tokens[:-1], tokens[1:]


class Demo(LightningTransformer):
    def forward(self, inputs: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        tally.forward()
        return super().forward(inputs, target)

    def on_before_backward(self, loss: torch.Tensor) -> None:
        tally.backward()

    def on_train_batch_end(self, outputs, batch, batch_idx: int) -> None:
        print(f"loss {outputs['loss'].item().hex()}")

    def prepare_data(self) -> None:
        """Nothing is downloaded."""

    def train_dataloader(self) -> DataLoader:
        return DataLoader(Sequences(), batch_size=2, collate_fn=tally.collate)


lightning.seed_everything(0)
trainer = lightning.Trainer(
    accelerator="cpu",
    max_epochs=2,
    accumulate_grad_batches=2,
    gradient_clip_val=1.0,
    logger=False,
    enable_checkpointing=False,
    enable_model_summary=False,
    enable_progress_bar=False,
)
trainer.fit(Demo(vocab_size=40))
tally.steps = trainer.global_step
tally.print()
