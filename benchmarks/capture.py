"""Cost of windows of deep capture in char_gpt: ``python -m benchmarks.capture [--steps N]``.

One training alternates between stretches of 40 steps that begin with a window and stretches without one, so that a
change of the machine's speed affects both. The cost of a window is what the run itself prints about it.
"""

import argparse
import json
import re
import subprocess
import sys
from pathlib import Path
from statistics import median, quantiles
from tempfile import TemporaryDirectory
from typing import Any, Final

from benchmarks.children import environment
from benchmarks.figures import Figure, print_figures, print_table

ROOT: Final = Path(__file__).parents[1]
TARGET_RATIO: Final = 1.005
STRETCH: Final = 40  # steps; a window begins with the third
NEAR: Final = 14  # first steps of a stretch: the window, and those beside which it is written
WINDOW_NOTE: Final = re.compile(
    r"steps took ([\d.]+) times the median outside, start ([\d.]+) s, stop ([\d.]+) s, export ([\d.]+) s "
    r"\(other Python code held for ([\d.]+) s of it\), clearing memory ([\d.]+) s, ([\d.]+) MB"
)
WHAT: Final = "steps outside capture windows, with / without"


def run(steps: int = 4000) -> list[Figure]:
    """Measure, print and return the ratio; takes about two minutes."""
    with TemporaryDirectory() as temporary:
        folder = Path(temporary)
        command = [sys.executable, "-m", "benchmarks.capture", "--train", str(folder / "out"), "--steps", str(steps)]
        variables = environment(True, str(folder / "runs")) | {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
        done = subprocess.run(command, cwd=ROOT, env=variables, capture_output=True, text=True)
        if done.returncode:
            print(f"Not measured: {done.stderr[-2000:]}\n")
            return [Figure(WHAT, None, TARGET_RATIO)]
        (run_folder,) = (folder / "runs").glob("2*")
        records = [json.loads(line) for line in (run_folder / "rank0.jsonl").read_text().splitlines()]
        notes = json.loads((run_folder / "report.json").read_text())["health"]["notes"]
    windows = [[float(number) for number in found.groups()] for note in notes if (found := WINDOW_NOTE.search(note))]
    middles = [f"{median(column):.3f}" for column in zip(*windows, strict=True)]
    headers = [
        "steps in it, over those outside",
        "start s",
        "stop s",
        "export s",
        "of it others held s",
        "clearing s",
        "MB",
    ]
    print_table([f"median of {len(windows)} windows of 4 steps", *headers], [["", *middles]])
    steps_ns = [ns for record in records for ns in record.get("step_ns", ())]
    stats = [Figure(WHAT, _ratio(steps_ns), TARGET_RATIO, "", 4)]
    print_figures(stats)
    return stats


def _ratio(steps_ns: list[int]) -> float:
    """Return how steps of stretches with a window stand to those of the two stretches beside; medians of medians."""
    begins = range(STRETCH, len(steps_ns) - STRETCH, STRETCH)
    middles = {begin: median(steps_ns[begin + NEAR : begin + STRETCH]) for begin in begins}
    ratios = [
        2 * middles[begin] / (middles[begin - STRETCH] + middles[begin + STRETCH])
        for begin in begins
        if _has_window(begin) and begin - STRETCH in middles and begin + STRETCH in middles
    ]
    lower, middle, upper = quantiles(ratios, n=4)
    print(
        f"{len(ratios)} stretches of {STRETCH - NEAR} steps of {median(middles.values()) / 1e6:.2f} ms: {middle:.4f} of"
    )
    print(f"the two beside each (quartiles {lower:.4f} to {upper:.4f})\n")
    return middle


def _has_window(step: int) -> bool:
    return step // STRETCH % 2 == 1


def _train(folder: Path, steps: int) -> None:
    """Train in this process, and have windows in every other stretch."""
    from torch.optim.optimizer import register_optimizer_step_post_hook

    from examples.char_gpt.__main__ import main
    from training_profiler import start_training_profiling

    count = 0

    def after_step(*_: Any) -> None:
        nonlocal count
        count += 1
        if count % STRETCH == 0:
            first = count + 3
            plan = f"steps={first}-{first + 3}" if _has_window(count) else "windows=1000"
            start_training_profiling(log_every=10**9, capture=f"{plan},windows=1000")

    register_optimizer_step_post_hook(after_step)
    sizes = ["--steps", str(steps), "--eval-every", str(10 * steps), "--sample-length", "1", "--device", "cpu"]
    sys.exit(main([*sizes, "--log-every", str(10**9), "--out", str(folder)]))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=4000)
    parser.add_argument("--train", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    _train(given.train, given.steps) if given.train else run(given.steps)
