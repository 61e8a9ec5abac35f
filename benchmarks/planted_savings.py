"""What the first finding says a planted cost is worth, and what it is worth: trainings with and without the cost.

Both kinds of rounds alternate in one process without the profiler, so that a change of the machine's speed affects
both. Then the training with the cost runs unmodified under the profiler.

``python -m benchmarks.planted_savings [NAME ...]`` measures all, or those named.
"""

import argparse
import importlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.children import ROOT
from benchmarks.figures import Figure, print_table

PROGRAM = ROOT / "benchmarks" / "planted" / "savings.py"
ROUNDS = 40  # under the profiler: its first seconds, in which it costs more, are to be a small part
PAIRS = {"growing_list": ROUNDS}  # of rounds with and without the cost, after one that is not counted; others:
ENOUGH = 12
CLOSE = 0.10  # of the training's time: the finding is right
TIMEOUT_S = 400
# Both kinds of rounds share the machine with others; what that costs is not the program's.
ALONE = "machine-busy=1,cpu-oversubscribed=1,step-time-varies=9"
COLUMNS = ["planted cost", "first finding", "reported (likely range)", "true", "within 10 points"]
MEASURE = """
import sys, torch
sys.path.insert(0, sys.argv[1])
import savings
torch.manual_seed(0)
torch.set_num_threads(1)
make, took = savings.PROGRAMS[sys.argv[2]], {True: 0.0, False: 0.0}
rounds = {is_planted: make(is_planted) for is_planted in took}
for pair in range(int(sys.argv[3]) + 1):
    for is_planted, train in rounds.items():
        began = savings.own_s()
        train()
        took[is_planted] += (savings.own_s() - began) * (pair > 0)
print("share:", 1 - took[False] / took[True])
"""


@dataclass(frozen=True, slots=True)
class Outcome:
    """One planted cost; shares are of the training's time."""

    name: str
    true: float
    reported: float
    low: float  # of the range that the finding gives
    high: float
    code: str
    message: str
    actions: tuple[str, ...]  # of all findings with a saving, and their shares

    @property
    def is_close(self) -> bool:
        """Whether the finding's saving is within 10 points of the true one."""
        return abs(self.true - self.reported) <= CLOSE

    def cells(self) -> list[str]:
        """Return the row of the table."""
        cell = f"{self.reported:.0%} ({self.low:.0%} to {self.high:.0%})"
        return [self.name.replace("_", " "), self.code, cell, f"{self.true:.0%}", "yes" if self.is_close else "no"]


def environment() -> dict[str, str]:
    """Return the variables of a training: one thread, the package of this tree."""
    return os.environ | {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}


def true_share(name: str) -> float:
    """Return the share of the training's time that the cost takes."""
    command = [sys.executable, "-c", MEASURE, str(PROGRAM.parent), name, str(PAIRS.get(name, ENOUGH))]
    done = subprocess.run(
        command, env=environment(), capture_output=True, text=True, timeout=TIMEOUT_S, check=True, cwd=ROOT
    )
    return float(done.stdout.rpartition("share:")[2])


def findings_of(name: str) -> list[dict[str, Any]]:
    """Return the findings about the training with the cost, in their order."""
    with tempfile.TemporaryDirectory() as folder:
        variables = environment() | {"RECTIFIED_FLOW_PROFILE_DIR": folder, "RECTIFIED_FLOW_PROFILE_THRESHOLDS": ALONE}
        command = [sys.executable, "-m", "training_profiler", "run", sys.executable, str(PROGRAM), name, str(ROUNDS)]
        subprocess.run(command, env=variables, capture_output=True, timeout=TIMEOUT_S, check=True, cwd=folder)
        (report,) = Path(folder).glob("*/report.json")
        return list(json.loads(report.read_text())["findings"])


def measure(name: str) -> Outcome:
    """Return the outcome of one planted cost: of the first action of the first finding."""
    worth = [finding for finding in findings_of(name) if finding["saving_share"] and finding["actions"]]
    changes = [finding for finding in worth if finding["code"] != "warm-up"]  # that asks for no change
    code, message, reported, low, high = "none", "", 0.0, 0.0, 0.0
    if changes:
        first = changes[0]
        code, message, reported = first["code"], first["finding"], first["actions"][0]["saving_share"]
        low, high = (reported * each / first["saving_s"] for each in first["saving_range_s"] or [first["saving_s"]] * 2)
    actions = [action for each in worth for action in each["actions"]]
    all_shares = tuple(f"{action['text']} {action['saving_share']:.0%}" for action in actions)
    return Outcome(name, true_share(name), reported, low, min(1.0, high), code, message, all_shares)


def run(names: Sequence[str] = ()) -> list[Figure]:
    """Measure all planted costs, or those named, and print their table."""
    sys.path.insert(0, str(PROGRAM.parent))
    programs = importlib.import_module(PROGRAM.stem).PROGRAMS
    outcomes = []
    for name in names or programs:
        outcomes.append(measure(name))
        print(" ".join(outcomes[-1].cells()), "|", "; ".join(outcomes[-1].actions), flush=True)
        print("   ", outcomes[-1].message, flush=True)
    print_table(COLUMNS, [outcome.cells() for outcome in outcomes])
    far = sum(not outcome.is_close for outcome in outcomes)
    return [Figure(f"planted costs reported 10 points or more off, of {len(outcomes)}", far, len(outcomes) // 2)]


def main() -> None:
    """Measure what the command line names."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*")
    run(parser.parse_args().names)


if __name__ == "__main__":
    main()
