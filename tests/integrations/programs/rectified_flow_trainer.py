"""The Trainer of rectified-flow-pytorch on digit images: it is itself a module, and all of the training is one call.

``--accumulate`` has two micro-batches an update and a frozen average of the model as teacher in every forward.
"""

import sys
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from rectified_flow_pytorch import ImageDataset, RectifiedFlow, Trainer, Unet
from sklearn.datasets import load_digits
from tally import Tally, updates

BATCH = 8
accumulate = "--accumulate" in sys.argv
tally = Tally()


class CountedImages(ImageDataset):
    loaded = 0

    def __getitem__(self, index: int) -> torch.Tensor:
        self.loaded += 1
        return super().__getitem__(index)


class CountedFlow(RectifiedFlow):
    def forward(self, *args, **kwargs):
        tally.forward()
        loss, breakdown = super().forward(*args, **kwargs)
        print(f"loss {tally.watch(loss).item().hex()}")
        return loss, breakdown


class CountedTrainer(Trainer):
    def sample(self, fname: str) -> torch.Tensor:
        before = images.loaded
        sampled = super().sample(fname)
        print(f"sample {sampled.sum().item().hex()}")
        tally.add("validation_epoch/data_loading", (images.loaded - before) // BATCH)
        return sampled


folder = Path("digits")
folder.mkdir()
for number, digit in enumerate(load_digits().images[:40]):
    Image.fromarray((digit * 255 / 16).astype(np.uint8)).save(folder / f"{number:02}.png")
images = CountedImages(folder, image_size=16, augment_horizontal_flip=True)
images.paths.sort()

torch.manual_seed(0)
trainer = CountedTrainer(
    CountedFlow(Unet(dim=8, dim_mults=(1, 2), channels=1), use_consistency=accumulate, ema_update_after_step=2),
    dataset=images,
    num_train_steps=12,
    batch_size=BATCH,
    num_samples=4,
    save_results_every=6,
    checkpoint_every=5,
    sample_kwargs={} if accumulate else {"steps": 4},
    grad_accum_every=2 if accumulate else 1,
    accelerate_kwargs={"cpu": True},
)
trainer()
tally.steps = updates(trainer.optimizer)
tally.data_loading = images.loaded // BATCH - tally.elsewhere["validation_epoch/data_loading"]
tally.print()
