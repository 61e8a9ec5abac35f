"""The training loop over all loaders."""

import itertools
import sys
from collections.abc import Iterator

import torch
from torch import nn
from torch.nn import functional as F

from examples.multi_loader.config import Config
from examples.multi_loader.data import Item, make_loader
from examples.multi_loader.schedule import order, proportions
from training_profiler import (
    profile_dataloader,
    profile_epoch,
    profile_phase,
    profile_section,
    profile_step,
    start_training_profiling,
    stop_training_profiling,
)


class Trainer:
    """Trains a small classifier as the file says."""

    def __init__(self, config: Config) -> None:
        torch.manual_seed(config.seed)
        self.config = config
        loaders = [make_loader(plan, config.seed + at, shuffles=True) for at, plan in enumerate(config.train)]
        self.lengths = [len(loader) for loader in loaders]
        asked = proportions(config.schedule, self.lengths, config.weights)
        self.loaders = [
            profile_dataloader(loader, name=plan.name, proportion=share)
            for loader, plan, share in zip(loaders, config.train, asked, strict=True)
        ]
        self.val_loaders = [
            profile_dataloader(make_loader(plan, config.seed, shuffles=False), name=plan.name) for plan in config.val
        ]
        self.iterators: list[Iterator[Item]] = [iter(loader) for loader in self.loaders]
        self.model = nn.Sequential(nn.Flatten(), nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
        self.optimizer = torch.optim.SGD(self.model.parameters(), config.learning_rate)
        self.step = 0
        self.losses: list[float] = []

    @property
    def is_done(self) -> bool:
        return self.config.steps is not None and self.step >= self.config.steps

    def run(self) -> None:
        """Train for all epochs, or steps; validate after each epoch."""
        epochs = itertools.count(1) if self.config.epochs is None else range(1, self.config.epochs + 1)
        for epoch in epochs:
            with profile_epoch(epoch):
                self._train_epoch(epoch)
                accuracies = self._validate()
            loss = sum(self.losses[-20:]) / len(self.losses[-20:])
            validated = "".join(f"  {name} {accuracy:.1%} right" for name, accuracy in accuracies.items())
            sys.stdout.write(f"epoch {epoch}  step {self.step}  loss {loss:.4f}{validated}\n")
            if self.is_done:
                break

    def _train_epoch(self, epoch: int) -> None:
        self.model.train()
        kind, every = self.config.schedule, self.config.grad_accumulation
        waiting = 0  # batches whose gradients are not used yet
        for which in order(kind, self.lengths, self.config.weights, self.config.seed + epoch):
            self._add_gradient(*self._fetch(which))
            waiting += 1
            if waiting == every:
                self._update()
                waiting = 0
            if self.is_done:
                return
        if waiting:
            self._update()

    def _fetch(self, which: int) -> Item:
        """Return the next batch of a loader; an exhausted loader starts again."""
        try:
            return next(self.iterators[which])
        except StopIteration:
            self.iterators[which] = iter(self.loaders[which])
            return next(self.iterators[which])

    def _add_gradient(self, images: torch.Tensor, digits: torch.Tensor) -> None:
        with profile_section("forward_pass"):
            loss = F.cross_entropy(self.model(images), digits)
        with profile_section("backward_pass"):
            (loss / self.config.grad_accumulation).backward()
        self.losses.append(float(loss.detach()))

    def _update(self) -> None:
        with profile_section("optimizer_step"):
            self.optimizer.step()
            self.optimizer.zero_grad(set_to_none=True)
        self.step += 1
        profile_step()

    @torch.no_grad()
    def _validate(self) -> dict[str, float]:
        """Return the share of correctly recognised digits, by loader."""
        self.model.eval()
        accuracies = {}
        with profile_phase("validation"):
            for plan, loader in zip(self.config.val, self.val_loaders, strict=True):
                right = count = 0
                for images, digits in loader:
                    with profile_section("forward_pass"):
                        predicted = self.model(images).argmax(dim=1)
                    right += int((predicted == digits).sum())
                    count += len(digits)
                accuracies[plan.name] = right / count
        return accuracies


def train(config: Config) -> None:
    """Train, profiled where the profiler is on."""
    torch.set_num_threads(1)  # more threads slow such small operations down
    start_training_profiling(
        log_every=config.log_every,
        log_scalars_every_n_steps=config.log_scalars_every_n_steps,
        sinks=config.sinks or None,
    )
    Trainer(config).run()
    stop_training_profiling()
