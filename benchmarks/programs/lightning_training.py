"""The same training by Lightning: ``python lightning_training.py SIZE BATCH BLOCK_STEPS [PROFILER]``."""

import sys
from typing import Any

import lightning
import torch
from torch import nn

from benchmarks.programs.plain_training import make
from benchmarks.turns import Turns


class Module(lightning.LightningModule):
    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.criterion = nn.CrossEntropyLoss()

    def training_step(self, batch: Any, index: int) -> torch.Tensor:
        words, labels = batch
        return self.criterion(self.model(words), labels)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), 1e-4)


class TakeTurns(lightning.Callback):
    def __init__(self, block_steps: int) -> None:
        self._turns = Turns(block_steps)

    def on_train_batch_end(self, trainer: lightning.Trainer, *_: Any) -> None:
        trainer.should_stop = not self._turns.after_step()


def main(size: str, batch: int, block_steps: int, profiler: str | None = None) -> None:
    model, loader = make(size, batch)
    trainer = lightning.Trainer(
        accelerator="cpu",
        max_steps=-1,
        max_epochs=-1,
        profiler=profiler,
        callbacks=[TakeTurns(block_steps)],
        gradient_clip_val=1.0,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Module(model), loader)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), *sys.argv[4:])
