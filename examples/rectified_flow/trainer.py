"""The training loop."""

import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from examples.rectified_flow.data import CLASSES, IMAGE_SIZE, load_splits, training_loader, validation_loader
from examples.rectified_flow.ema import MovingAverage
from examples.rectified_flow.flow import draw_noise_and_times, flow_loss, sample
from examples.rectified_flow.images import save_grid
from examples.rectified_flow.model import VelocityUNet
from examples.rectified_flow.ranks import mean_over_ranks, wait_for_all
from training_profiler import (
    profile_dataloader,
    profile_epoch,
    profile_phase,
    profile_section,
    profile_step,
)


@dataclass(frozen=True)
class Plan:
    """What to train and for how long."""

    steps: int
    batch_size: int
    num_workers: int
    seed: int
    epoch_steps: int
    learning_rate: float
    out: Path
    resume: Path | None = None


class Trainer:
    """Trains the velocity model; every rank has one."""

    def __init__(self, plan: Plan, device: torch.device, rank: int, ranks: int) -> None:
        torch.manual_seed(plan.seed)
        self.plan, self.device, self.rank = plan, device, rank
        self.train_set, self.validation_set = load_splits(plan.seed)
        self.model = VelocityUNet().to(device)
        self.ema = MovingAverage(self.model)
        self.parallel: nn.Module = DistributedDataParallel(self.model) if ranks > 1 else self.model
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=plan.learning_rate, weight_decay=0.01)
        self.step = 0
        self.metrics: list[dict[str, float]] = []
        if plan.resume is not None:
            self._load(plan.resume)

    def run(self) -> None:
        """Train until ``plan.steps`` are done; validate, sample and save after each epoch."""
        if self.is_primary:
            self.plan.out.mkdir(parents=True, exist_ok=True)
        while self.step < self.plan.steps:
            epoch = self.step // self.plan.epoch_steps + 1
            with profile_epoch(epoch):
                self._train_epoch(epoch)
                validation_loss = self._validate()
                self._say(f"epoch {epoch}  step {self.step}  validation loss {validation_loss:.4f}")
                self._record(step=self.step, validation_loss=validation_loss)
                self._sample(f"samples-{self.step:06d}.png")
                self._save()
        self._sample("samples.png")

    @property
    def is_primary(self) -> bool:
        return self.rank == 0

    def _train_epoch(self, epoch: int) -> None:
        steps = min(self.plan.epoch_steps, self.plan.steps - self.step)
        seed = self.plan.seed + 7919 * epoch + self.rank  # a resumed run draws the same as an uninterrupted one
        torch.manual_seed(seed)
        loader = training_loader(self.train_set, self.plan.batch_size, steps, self.plan.num_workers, seed)
        self.parallel.train()
        for images, digits in profile_dataloader(loader, name="digits"):
            self._train_step(images, digits)
            profile_step()

    def _train_step(self, images: torch.Tensor, digits: torch.Tensor) -> None:
        with profile_section("data_generation"):
            noise, times = draw_noise_and_times(images)
        with profile_section("data_transfer"):
            images, digits, noise, times = (
                tensor.to(self.device, non_blocking=True) for tensor in (images, digits, noise, times)
            )
        with profile_section("forward_pass"):
            loss = flow_loss(self.parallel, images, digits, noise, times)
        with profile_section("backward_pass"):
            loss.backward()
        with profile_section("metrics_computation"):
            parameters = list(self.model.parameters())
            gradient_norm = nn.utils.clip_grad_norm_(parameters, 1.0)
            parameter_norm = torch.nn.utils.get_total_norm(parameters)
        with profile_section("optimizer_step"):
            self.optimizer.step()
            self.optimizer.zero_grad(set_to_none=True)
        with profile_section("ema_update"):
            self.ema.update(self.model)
        with profile_section("synchronization"):
            mean_loss = mean_over_ranks(loss.detach())
        self.step += 1
        self._record(
            step=self.step,
            loss=mean_loss,
            gradient_norm=float(gradient_norm),
            parameter_norm=float(parameter_norm),
        )

    @torch.no_grad()
    def _validate(self) -> float:
        """Return the loss of the averaged model on the held-out images, with the same noise each time."""
        generator = torch.Generator().manual_seed(self.plan.seed)
        total, count = 0.0, 0
        with profile_phase("validation"):
            for images, digits in validation_loader(self.validation_set, batch_size=100):
                noise, times = draw_noise_and_times(images, generator)
                tensors = (tensor.to(self.device) for tensor in (images, digits, noise, times))
                total += float(flow_loss(self.ema.model, *tensors)) * len(images)
                count += len(images)
        return total / count

    def _sample(self, name: str) -> None:
        if not self.is_primary:
            return
        with profile_section("sampling"):
            digits = torch.arange(CLASSES, device=self.device).repeat(6)
            images = sample(self.ema.model, digits, IMAGE_SIZE, steps=20, seed=self.plan.seed)
        with profile_section("visualization_generation"):
            save_grid(images, CLASSES, self.plan.out / name)

    def _save(self) -> None:
        with profile_section("checkpointing"):
            if self.is_primary:
                path = self.plan.out / "checkpoint.pt"
                draft = path.with_suffix(".part")
                torch.save(self._state(), draft)
                os.replace(draft, path)  # a crash half-way leaves the previous checkpoint
                lines = "".join(json.dumps(row) + "\n" for row in self.metrics)
                (self.plan.out / "metrics.jsonl").write_text(lines, encoding="utf-8")
        with profile_section("synchronization"):
            wait_for_all()

    def _state(self) -> dict[str, Any]:
        return {
            "step": self.step,
            "model": self.model.state_dict(),
            "ema": self.ema.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "metrics": self.metrics,
        }

    def _load(self, path: Path) -> None:
        state = torch.load(path, map_location=self.device, weights_only=True)
        self.model.load_state_dict(state["model"])
        self.ema.model.load_state_dict(state["ema"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.step, self.metrics = state["step"], state["metrics"]

    def _record(self, **row: float) -> None:
        self.metrics.append(row)

    def _say(self, text: str) -> None:
        if self.is_primary:
            sys.stdout.write(text + "\n")
            sys.stdout.flush()
