"""Command line of the training; ``python -m examples.char_gpt --help``."""

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from examples.char_gpt.data import CorpusError
from examples.char_gpt.trainer import Plan, Trainer
from examples.rectified_flow.ranks import pick_device
from training_profiler import start_training_profiling, stop_training_profiling

STEPS = 700


def at_least(least: int) -> Callable[[str], int]:
    """Return a parser for whole numbers of at least ``least``."""

    def number(text: str) -> int:
        if int(text) < least:
            raise argparse.ArgumentTypeError(f"{text} is below {least}")
        return int(text)

    return number


def parse(words: Sequence[str] | None) -> argparse.Namespace:
    """Return the arguments; exits with status 2 if they are invalid."""
    positive = at_least(1)
    parser = argparse.ArgumentParser(
        prog="python -m examples.char_gpt",
        description="Train a small GPT on the source of Python's standard library; "
        "RECTIFIED_FLOW_PROFILE=1 in front profiles it.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--steps", type=positive, default=STEPS, help="optimizer updates")
    parser.add_argument("--eval-every", type=positive, default=175, help="updates between validations")
    parser.add_argument("--batch-size", type=positive, default=12, help="windows of text a micro-batch")
    parser.add_argument("--accumulation", type=positive, default=2, help="micro-batches an update")
    parser.add_argument("--context", type=positive, default=64, help="characters a window")
    parser.add_argument("--num-workers", type=at_least(0), default=0, help="processes that load data; 0 for none")
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda, mps, ...")
    parser.add_argument("--bf16", action="store_true", help="forward pass in bfloat16 where torch.autocast says so")
    parser.add_argument("--compile", action="store_true", help="torch.compile the model that is trained")
    parser.add_argument("--seed", type=int, default=0, help="fixes weights, the windows and what is written")
    parser.add_argument("--lr", type=float, default=1e-2, help="highest learning rate")
    parser.add_argument("--warmup-steps", type=positive, default=30, help="updates in which the learning rate rises")
    parser.add_argument("--lr-steps", type=positive, default=STEPS, help="updates until it has fallen to a tenth")
    parser.add_argument("--sample-length", type=positive, default=500, help="characters to write at the end")
    parser.add_argument("--log-every", type=positive, default=175, help="steps between profiling reports")
    parser.add_argument("--out", type=Path, default=Path("outputs/char_gpt"), help="folder for what it makes")
    parser.add_argument("--resume", type=Path, help="checkpoint to go on from")
    return parser.parse_args(words)


def main(words: Sequence[str] | None = None) -> int:
    """Train as the command line says; return 0, or 2 if there is no text to learn from."""
    arguments = parse(words)
    plan = Plan(
        steps=arguments.steps,
        eval_every=arguments.eval_every,
        batch_size=arguments.batch_size,
        accumulation=arguments.accumulation,
        num_workers=arguments.num_workers,
        seed=arguments.seed,
        context=arguments.context,
        learning_rate=arguments.lr,
        lr_steps=arguments.lr_steps,
        warmup_steps=arguments.warmup_steps,
        has_bf16=arguments.bf16,
        is_compiled=arguments.compile,
        sample_length=arguments.sample_length,
        out=arguments.out,
        resume=arguments.resume,
    )
    device = pick_device(arguments.device)
    if device.type == "cpu":
        torch.set_num_threads(1)  # more threads slow such small operations down
    start_training_profiling(log_every=arguments.log_every)
    try:
        trainer = Trainer(plan, device)
    except CorpusError as error:
        sys.stderr.write(f"examples.char_gpt: {error}\n")
        return 2
    text = trainer.run()
    stop_training_profiling()
    sys.stdout.write(f"\n{text}\n\nWritten: {plan.out / 'sample.txt'}, checkpoint: {plan.out / 'checkpoint.pt'}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
