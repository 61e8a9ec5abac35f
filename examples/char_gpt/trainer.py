"""The training loop."""

import json
import math
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from examples.char_gpt.data import (
    Windows,
    decode,
    encode,
    read_corpus,
    training_loader,
    unigram_entropy,
    validation_loader,
)
from examples.char_gpt.model import GPT, next_character_loss, write
from training_profiler import profile_dataloader, profile_epoch, profile_phase, profile_section, profile_step

BEGINNING = "\nclass "
TEMPERATURE = 0.6
VALIDATION_BATCHES = 8


@dataclass(frozen=True)
class Plan:
    """What to train and for how long."""

    steps: int
    eval_every: int
    batch_size: int
    accumulation: int
    num_workers: int
    seed: int
    context: int
    learning_rate: float
    lr_steps: int
    warmup_steps: int
    has_bf16: bool
    is_compiled: bool
    sample_length: int
    out: Path
    resume: Path | None = None

    def rate(self, step: int) -> float:
        """Return the learning rate of a step, from 0 on: a rise, then half a cosine down to a tenth, and no further."""
        if step < self.warmup_steps:
            return self.learning_rate * (step + 1) / self.warmup_steps
        way = min(1.0, (step - self.warmup_steps) / max(1, self.lr_steps - self.warmup_steps))
        return self.learning_rate * (0.55 + 0.45 * math.cos(math.pi * way))


class Trainer:
    """Trains the GPT."""

    def __init__(self, plan: Plan, device: torch.device) -> None:
        torch.manual_seed(plan.seed)
        self.plan, self.device = plan, device
        train, held_out = read_corpus()
        self.train_set, self.validation_set = Windows(train, plan.context), Windows(held_out, plan.context)
        self.model = GPT(plan.context).to(device)
        # Validation and sampling have other shapes: compiling for them would take longer than they do.
        self.trained: nn.Module = torch.compile(self.model) if plan.is_compiled else self.model
        self.optimizer = torch.optim.AdamW(_groups(self.model), lr=plan.learning_rate, betas=(0.9, 0.95))
        self.step = 0
        self.metrics: list[dict[str, float]] = [{"step": 0, "unigram_entropy": unigram_entropy(train)}]
        if plan.resume is not None:
            self._load(plan.resume)

    def run(self) -> str:
        """Train until ``plan.steps`` are done; validate and save in between; return what the model then writes."""
        self.plan.out.mkdir(parents=True, exist_ok=True)
        while self.step < self.plan.steps:
            epoch = self.step // self.plan.eval_every + 1
            with profile_epoch(epoch):
                self._train_epoch(min(epoch * self.plan.eval_every, self.plan.steps))
                loss = self._validate()
                self.metrics.append({"step": self.step, "validation_loss": loss})
                sys.stdout.write(f"step {self.step}  validation loss {loss:.4f} nats a character\n")
                sys.stdout.flush()
                self._save()
        return self._sample("sample.txt")

    def _train_epoch(self, last: int) -> None:
        plan = self.plan
        numbers = range(self.step * plan.accumulation, last * plan.accumulation)
        loader = training_loader(self.train_set, plan.batch_size, numbers, plan.num_workers, plan.seed)
        self.model.train()
        losses = []
        for tokens, targets in profile_dataloader(loader, name="windows"):
            losses.append(self._micro_batch(tokens, targets))
            if len(losses) == plan.accumulation:
                self._update(losses)
                losses = []
                profile_step()

    def _micro_batch(self, tokens: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Add a micro-batch's part to the gradients; return its loss."""
        with profile_section("data_transfer"):
            tokens, targets = (tensor.to(self.device, non_blocking=True) for tensor in (tokens, targets))
        with profile_section("forward_pass"):
            with torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=self.plan.has_bf16):
                logits = self.trained(tokens)
            loss = next_character_loss(logits, targets)
        with profile_section("backward_pass"):
            (loss / self.plan.accumulation).backward()
        return loss.detach()

    def _update(self, losses: list[torch.Tensor]) -> None:
        with profile_section("metrics_computation"):
            gradient_norm = nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        with profile_section("optimizer_step"):
            rate = self.plan.rate(self.step)
            for group in self.optimizer.param_groups:
                group["lr"] = rate
            self.optimizer.step()
            self.optimizer.zero_grad(set_to_none=True)
        with profile_section("metrics_computation"):  # after the update: reading a number waits for the device
            loss = float(torch.stack(losses).mean())
            self.step += 1
            self.metrics.append(
                {"step": self.step, "loss": loss, "gradient_norm": float(gradient_norm), "learning_rate": rate}
            )

    @torch.no_grad()
    def _validate(self) -> float:
        """Return the loss on the same windows of held-out modules each time."""
        self.model.eval()
        total = 0.0
        with profile_phase("validation"):
            loader = validation_loader(self.validation_set, self.plan.batch_size, VALIDATION_BATCHES)
            for tokens, targets in profile_dataloader(loader, name="held-out windows"):
                with profile_section("forward_pass"):
                    logits = self.model(tokens.to(self.device))
                    total += float(next_character_loss(logits, targets.to(self.device)))
        return total / VALIDATION_BATCHES

    def _sample(self, name: str) -> str:
        """Let the model write, keep it in a file and return it."""
        self.model.eval()
        with profile_section("sampling"):
            text = decode(
                write(self.model, encode(BEGINNING), self.plan.sample_length, TEMPERATURE, self.plan.seed)
            ).strip("\n")
            (self.plan.out / name).write_text(text + "\n", encoding="utf-8")
        return text

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
            "optimizer": self.optimizer.state_dict(),
            "metrics": self.metrics,
        }

    def _load(self, path: Path) -> None:
        state = torch.load(path, map_location=self.device, weights_only=True)
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.step, self.metrics = state["step"], state["metrics"]


def _groups(model: nn.Module) -> list[dict[str, Any]]:
    """Return the parameters in two groups: weight decay is for matrices, not for biases and norms."""
    parameters = list(model.parameters())
    return [
        {"params": [p for p in parameters if p.dim() >= 2], "weight_decay": 0.1},
        {"params": [p for p in parameters if p.dim() < 2], "weight_decay": 0.0},
    ]
