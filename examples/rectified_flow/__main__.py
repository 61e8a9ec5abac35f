"""Command line of the training; ``python -m examples.rectified_flow --help``."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from examples.rectified_flow.ranks import pick_device, process_group
from examples.rectified_flow.trainer import Plan, Trainer
from training_profiler import start_training_profiling, stop_training_profiling


def parse(words: Sequence[str] | None) -> argparse.Namespace:
    """Return the arguments; exits with status 2 if they are invalid."""
    parser = argparse.ArgumentParser(
        prog="python -m examples.rectified_flow",
        description="Train a rectified flow on handwritten digits; "
        "RECTIFIED_FLOW_PROFILE=1 in front profiles it, torchrun in front trains on several ranks.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--steps", type=positive, default=1200, help="optimizer updates")
    parser.add_argument("--epoch-steps", type=positive, default=300, help="updates between validations")
    parser.add_argument("--batch-size", type=positive, default=64, help="images a step and rank")
    parser.add_argument("--num-workers", type=int, default=2, help="processes that load data; 0 for none")
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda, mps, ...")
    parser.add_argument("--seed", type=int, default=0, help="fixes weights, data order and noise")
    parser.add_argument("--lr", type=float, default=2e-3, help="learning rate")
    parser.add_argument("--log-every", type=positive, default=200, help="steps between profiling reports")
    parser.add_argument("--out", type=Path, default=Path("outputs/rectified_flow"), help="folder for what it makes")
    parser.add_argument("--resume", type=Path, help="checkpoint to go on from")
    return parser.parse_args(words)


def positive(text: str) -> int:
    """Return the number in ``text``.

    Raises:
        ValueError: it is not a whole number above 0.
    """
    number = int(text)
    if number < 1:
        raise ValueError
    return number


def main(words: Sequence[str] | None = None) -> None:
    """Train as the command line says."""
    arguments = parse(words)
    plan = Plan(
        steps=arguments.steps,
        batch_size=arguments.batch_size,
        num_workers=arguments.num_workers,
        seed=arguments.seed,
        epoch_steps=arguments.epoch_steps,
        learning_rate=arguments.lr,
        out=arguments.out,
        resume=arguments.resume,
    )
    device = pick_device(arguments.device)
    start_training_profiling(log_every=arguments.log_every)
    with process_group(device) as (rank, ranks):
        trainer = Trainer(plan, device, rank, ranks)
        trainer.run()
        stop_training_profiling()
    if trainer.is_primary:
        sys.stdout.write(f"Samples: {plan.out / 'samples.png'}, checkpoint: {plan.out / 'checkpoint.pt'}\n")


if __name__ == "__main__":
    main()
