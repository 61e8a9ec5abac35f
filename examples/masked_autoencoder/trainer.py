"""The training loop."""

import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader

from examples.masked_autoencoder.data import draw_strokes, loaders
from examples.masked_autoencoder.model import MaskedAutoencoder
from examples.masked_autoencoder.patches import PATCH, draw_order, patchify, unpatchify
from examples.rectified_flow.data import IMAGE_SIZE
from examples.rectified_flow.ema import MovingAverage
from examples.rectified_flow.images import save_grid
from training_profiler import profile_dataloader, profile_epoch, profile_phase, profile_section, profile_step

SHOWN = 10  # images in the picture


@dataclass(frozen=True)
class Plan:
    """What to train and for how long."""

    epochs: int
    batch_size: int
    num_workers: int
    seed: int
    mask_ratio: float
    learning_rate: float
    synthetic: bool
    out: Path

    @property
    def visible(self) -> int:
        """How many patches of an image the encoder sees."""
        patches = (IMAGE_SIZE // PATCH) ** 2
        return max(1, round(patches * (1 - self.mask_ratio)))


class Trainer:
    """Trains the autoencoder."""

    def __init__(self, plan: Plan, device: torch.device) -> None:
        torch.manual_seed(plan.seed)
        self.plan, self.device = plan, device
        self.loader, self.validation_set = loaders(plan.batch_size, plan.num_workers, plan.seed)
        self.model = MaskedAutoencoder(IMAGE_SIZE).to(device)
        self.ema = MovingAverage(self.model, decay=0.99)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=plan.learning_rate, weight_decay=0.05)
        self.schedule = torch.optim.lr_scheduler.OneCycleLR(
            self.optimizer, plan.learning_rate, total_steps=plan.epochs * len(self.loader) + 1, pct_start=0.1
        )
        self.step = 0
        self.metrics: list[dict[str, float]] = []

    def run(self) -> None:
        """Train for all epochs; validate, draw and save after each."""
        self.plan.out.mkdir(parents=True, exist_ok=True)
        for epoch in range(1, self.plan.epochs + 1):
            with profile_epoch(epoch):
                self._train_epoch()
                loss = self._validate()
                self._record(step=self.step, validation_loss=loss)
                if epoch == 1 or epoch % 5 == 0 or epoch == self.plan.epochs:
                    self._draw(f"reconstructions-{epoch:03d}.png")
                    self._save()
                    sys.stdout.write(f"epoch {epoch}  step {self.step}  validation loss {loss:.4f}\n")
                    sys.stdout.flush()
        self._draw("reconstructions.png")

    def _train_epoch(self) -> None:
        self.model.train()
        if self.plan.synthetic:
            for _ in range(len(self.loader)):
                with profile_section("data_generation"):
                    images = draw_strokes(self.plan.batch_size)
                self._train_step(images)
                profile_step()
        else:
            for images, _ in profile_dataloader(self.loader, name="digits"):
                self._train_step(images)
                profile_step()

    def _train_step(self, images: torch.Tensor) -> None:
        with profile_section("data_generation"):
            order = draw_order(len(images), self.model.patches)
        with profile_section("data_transfer"):
            images, order = (tensor.to(self.device, non_blocking=True) for tensor in (images, order))
        with profile_section("forward_pass"):
            loss = self.model.loss(images, order, self.plan.visible)
        with profile_section("backward_pass"):
            loss.backward()
        with profile_section("metrics_computation"):
            gradient_norm = nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        with profile_section("optimizer_step"):
            self.optimizer.step()
            self.schedule.step()
            self.optimizer.zero_grad(set_to_none=True)
        with profile_section("ema_update"):
            self.ema.update(self.model)
        self.step += 1
        self._record(step=self.step, loss=float(loss.detach()), gradient_norm=float(gradient_norm))

    @torch.no_grad()
    def _validate(self) -> float:
        """Return the loss of the averaged model on held-out digits, with the same patches hidden each time."""
        generator = torch.Generator().manual_seed(self.plan.seed)
        total, count = 0.0, 0
        with profile_phase("validation"):
            loader = DataLoader(self.validation_set, 100)
            for images, _ in profile_dataloader(loader, name="held-out digits"):
                order = draw_order(len(images), self.model.patches, generator)
                with profile_section("forward_pass"):
                    loss = self.ema.model.loss(images.to(self.device), order.to(self.device), self.plan.visible)
                total += float(loss) * len(images)
                count += len(images)
        return total / count

    @torch.no_grad()
    def _draw(self, name: str) -> None:
        """Draw held-out digits: what the encoder sees, what comes of it, and what it was."""
        with profile_section("visualization_generation"):
            images = torch.stack([self.validation_set[i][0] for i in range(SHOWN)]).to(self.device)
            generator = torch.Generator().manual_seed(self.plan.seed)
            order = draw_order(SHOWN, self.model.patches, generator).to(self.device)
            predicted = self.ema.model(images, order, self.plan.visible)
            is_visible = (order.argsort(dim=1) < self.plan.visible)[:, :, None]
            patches = patchify(images)
            seen = torch.where(is_visible, patches, torch.full_like(patches, -0.2))  # grey is hidden
            filled = torch.where(is_visible, patches, predicted)
            rows = [unpatchify(part, IMAGE_SIZE) for part in (seen, filled)] + [images]
            save_grid(torch.cat(rows).clamp(-1, 1), SHOWN, self.plan.out / name)

    def _save(self) -> None:
        with profile_section("checkpointing"):
            path = self.plan.out / "checkpoint.pt"
            draft = path.with_suffix(".part")
            torch.save(self._state(), draft)
            os.replace(draft, path)  # a crash half-way leaves the checkpoint before it
            lines = "".join(json.dumps(row) + "\n" for row in self.metrics)
            (self.plan.out / "metrics.jsonl").write_text(lines, encoding="utf-8")

    def _state(self) -> dict[str, Any]:
        return {
            "step": self.step,
            "model": self.model.state_dict(),
            "ema": self.ema.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
        }

    def _record(self, **row: float) -> None:
        self.metrics.append(row)
