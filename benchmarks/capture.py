"""Cost of a window of deep capture in char_gpt: ``python -m benchmarks.capture [--pairs N]``.

Each pair are two processes that train the same, one with windows, one without, one after the other and in turns of who
comes first. What a window takes is what the run itself prints of it.
"""

import argparse
import json
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Final

from benchmarks.figures import Figure, print_figures, print_table, spread
from training_profiler.settings import read_settings

ROOT: Final = Path(__file__).parents[1]
TARGET_RATIO: Final = 1.005
STEPS: Final = 160
WINDOWS: Final = ((60, 63), (110, 113))
NEAR: Final = 5  # steps after a window: in them it is stopped and written
TOLD: Final = re.compile(
    r"steps took ([\d.]+) times the median outside, stop ([\d.]+) s, export ([\d.]+) s "
    r"\(other Python code held for ([\d.]+) s of it\), ([\d.]+) MB"
)


def run(pairs: int = 5) -> list[Figure]:
    """Measure, print and return the figures; a pair takes about half a minute."""
    ratios, windows = [], []
    with TemporaryDirectory() as temporary:
        for pair in range(pairs):
            folder = Path(temporary) / str(pair)
            taken = {}
            for has_windows in (True, False) if pair % 2 else (False, True):
                taken[has_windows] = _steps_outside_s(_train(folder / str(has_windows), has_windows))
            ratios.append(median(taken[True]) / median(taken[False]))
            report = next((folder / "True" / "runs").iterdir()) / "report.json"
            notes = json.loads(report.read_text())["health"]["notes"]
            windows += [[float(number) for number in found.groups()] for note in notes if (found := TOLD.search(note))]
    print_table(
        ["window", "steps in it, over those outside", "stop s", "export s", "of it held s", "MB"],
        [[number, *window] for number, window in enumerate(windows, 1)],
    )
    middles = [f"{median(column):.3f}" for column in zip(*windows, strict=True)]
    print(f"medians: {', '.join(middles)}")
    lower, middle, upper = spread(ratios)
    print(f"steps outside windows, median of a run with over one without: {middle:.4f} ({lower:.4f} - {upper:.4f})")
    figures = [Figure("steps outside capture windows, with / without", middle, TARGET_RATIO, "", 4)]
    print_figures(figures)
    return figures


def _train(folder: Path, has_windows: bool) -> Path:
    """Return the journal of a training with or without windows."""
    folder.mkdir(parents=True)
    plan = ",".join(f"steps={first}-{last}" for first, last in WINDOWS) if has_windows else "windows=1"
    code = (
        f"import sys; sys.path.insert(0, {str(ROOT)!r}); import os; "
        f"os.environ.update(RECTIFIED_FLOW_PROFILE='1', RECTIFIED_FLOW_PROFILE_CAPTURE={plan!r}); "
        f"from examples.char_gpt.__main__ import main; "
        f"sys.exit(main(['--steps', '{STEPS}', '--eval-every', '{STEPS}', '--sample-length', '1', '--device', 'cpu']))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(done.stderr[-2000:])
    return next((folder / read_settings().dir).iterdir()) / "rank0.jsonl"


def _steps_outside_s(journal: Path) -> list[float]:
    """Return the durations of the steps of a journal that are in no window, nor near one, and no warm-up."""
    records = [json.loads(line) for line in journal.read_text().splitlines()]
    steps_ns: Sequence[int] = [ns for record in records for ns in record.get("totals", record).get("step_ns", ())]
    near = {step for first, last in WINDOWS for step in range(first, last + NEAR + 1)} | set(range(1, 11))
    return [ns / 1e9 for step, ns in enumerate(steps_ns, 1) if step not in near]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=5)
    run(parser.parse_args().pairs)
