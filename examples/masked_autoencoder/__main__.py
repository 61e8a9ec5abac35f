"""Command line of the training; ``python -m examples.masked_autoencoder --help``."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import torch

from examples.masked_autoencoder.trainer import Plan, Trainer
from examples.rectified_flow.__main__ import positive
from examples.rectified_flow.ranks import pick_device
from training_profiler import start_training_profiling, stop_training_profiling


def ratio(text: str) -> float:
    """Return the number in ``text``.

    Raises:
        ValueError: it is not between 0 and 1.
    """
    number = float(text)
    if not 0 < number < 1:
        raise ValueError
    return number


def not_negative(text: str) -> int:
    """Return the number in ``text``.

    Raises:
        ValueError: it is not a whole number of at least 0.
    """
    number = int(text)
    if number < 0:
        raise ValueError
    return number


def parse(words: Sequence[str] | None) -> argparse.Namespace:
    """Return the arguments; exits with status 2 if they are invalid."""
    parser = argparse.ArgumentParser(
        prog="python -m examples.masked_autoencoder",
        description="Train a masked autoencoder on handwritten digits; RECTIFIED_FLOW_PROFILE=1 in front profiles it.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--epochs", type=positive, default=25, help="passes over the 1,500 training images")
    parser.add_argument("--batch-size", type=positive, default=50, help="images a step, 1,500 at most")
    parser.add_argument("--num-workers", type=not_negative, default=0, help="processes that load data; 0 for none")
    parser.add_argument("--mask-ratio", type=ratio, default=0.75, help="part of the patches that is hidden")
    parser.add_argument("--synthetic", action="store_true", help="train on drawings made in the loop, not on digits")
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda, mps, ...")
    parser.add_argument("--seed", type=int, default=0, help="fixes weights, data order and masks")
    parser.add_argument("--lr", type=float, default=2e-3, help="highest learning rate")
    parser.add_argument("--log-every", type=positive, default=300, help="steps between profiling reports")
    parser.add_argument("--out", type=Path, default=Path("outputs/masked_autoencoder"), help="folder for what it makes")
    return parser.parse_args(words)


def main(words: Sequence[str] | None = None) -> None:
    """Train as the command line says."""
    arguments = parse(words)
    plan = Plan(
        epochs=arguments.epochs,
        batch_size=min(arguments.batch_size, 1500),
        num_workers=arguments.num_workers,
        seed=arguments.seed,
        mask_ratio=arguments.mask_ratio,
        learning_rate=arguments.lr,
        synthetic=arguments.synthetic,
        out=arguments.out,
    )
    device = pick_device(arguments.device)
    if device.type == "cpu":
        torch.set_num_threads(1)  # more threads slow such small operations down
    start_training_profiling(log_every=arguments.log_every)
    Trainer(plan, device).run()
    stop_training_profiling()
    sys.stdout.write(f"Reconstructions: {plan.out / 'reconstructions.png'}, checkpoint: {plan.out / 'checkpoint.pt'}\n")


if __name__ == "__main__":
    main()
