"""What the first finding says a planted cost is worth, and what it is worth: trainings with and without the cost.

Both kinds of rounds alternate in one process without the profiler, so that a change of the machine's speed affects
both. Then the training with the cost runs unmodified under the profiler.

``python -m benchmarks.planted_savings [NAME ...]`` measures all, or those named; ``--page`` writes the guide's page.
"""

import argparse
import datetime
import importlib
import importlib.metadata
import json
import os
import platform
import re
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tabulate import tabulate

from benchmarks.children import ROOT
from benchmarks.figures import Figure, print_table

PROGRAM = ROOT / "tests" / "planted" / "savings.py"
PAGE = ROOT / "docs" / "planted-savings.md"
# Under the profiler: its first seconds, in which it costs more, are to be a small part. As many with and without the
# cost, after one of each that is not counted: what grows grows as long.
ROUNDS = 40
CLOSE = 0.10  # of the training's time: the finding is right
SECONDS = re.compile(r"^seconds: (\S+)$", re.MULTILINE)
TIMEOUT_S = 400
# Both kinds of rounds share the machine with others; what that costs is not the program's.
ALONE = "machine-busy=1,cpu-oversubscribed=1,step-time-varies=9"
COLUMNS = ["planted cost", "first finding", "reported (likely range)", "true", "within 10 points"]
KEPT = ROOT / "build" / "planted_savings.json"
ROUNDED = 0.01
WIDTH = 120  # of the page's text
PAGE_TEXT = """# Do findings save what they say?

{count} small trainings were each given one cost on purpose: a transform in Python, a checkpoint every second step, a
loop in `forward`. The table has what the first finding says that a change saves, and what it really saves: rounds
with and without the cost alternate in one process without the profiler. All shares are of the training's time.

The first finding is within 10 points of the truth in {close} of {count}, and the truth lies in the range that it gives
in {in_range}. A finding about another cause than the planted one counts as well, with what it says.

{table}

Rules were adjusted on the same programs, which is a limit of these figures. The profiled trainings have 40 rounds of 40
steps. With 10 rounds most shares are 3 to 9 points lower, because the first one counts there.

Measured on {date} on {machine}. Figures differ by several points from run to run; the rules about a
busy machine and uneven steps were off. The programs are in `tests/planted/savings.py`, and
`python -m benchmarks.planted_savings` measures them again.
"""
MEASURE = """
import sys, time, torch
sys.path.insert(0, sys.argv[1])
import savings
torch.manual_seed(0)
torch.set_num_threads(1)
make, took = savings.PROGRAMS[sys.argv[2]], {True: 0.0, False: 0.0}
rounds = {is_planted: make(is_planted) for is_planted in took}
for pair in range(int(sys.argv[3]) + 1):
    for is_planted, train in rounds.items():
        began = time.perf_counter()
        train()
        took[is_planted] += (time.perf_counter() - began) * (pair > 0)
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
    codes: tuple[str, ...]  # of all findings with a saving, and their shares

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
    command = [sys.executable, "-c", MEASURE, str(PROGRAM.parent), name, str(ROUNDS)]
    done = subprocess.run(
        command, env=environment(), capture_output=True, text=True, timeout=TIMEOUT_S, check=True, cwd=ROOT
    )
    return float(done.stdout.rpartition("share:")[2])


def findings_of(name: str) -> tuple[float, list[dict[str, Any]]]:
    """Return how long the training took under the profiler, and its findings in their order."""
    with tempfile.TemporaryDirectory() as folder:
        variables = environment() | {"RECTIFIED_FLOW_PROFILE_DIR": folder, "RECTIFIED_FLOW_PROFILE_THRESHOLDS": ALONE}
        command = [sys.executable, "-m", "training_profiler", "run", sys.executable, str(PROGRAM), name, str(ROUNDS)]
        done = subprocess.run(
            command, env=variables, capture_output=True, text=True, timeout=TIMEOUT_S, check=True, cwd=folder
        )
        took = SECONDS.search(done.stdout)
        (report,) = Path(folder).glob("*/report.json")
        assert took is not None
        return float(took[1]), json.loads(report.read_text())["insights"]


def measure(name: str) -> Outcome:
    """Return the outcome of one planted cost."""
    took_s, findings = findings_of(name)
    worth = [finding for finding in findings if finding["worth_s"]]
    changes = [finding for finding in worth if finding["code"] != "warm-up"]  # that asks for no change
    first: dict[str, Any] = changes[0] if changes else {"code": "none", "finding": "", "worth_s": 0.0}
    low, high = first.get("worth_range_s") or (first["worth_s"], first["worth_s"])
    return Outcome(
        name,
        true_share(name),
        first["worth_s"] / took_s,
        low / took_s,
        high / took_s,
        first["code"],
        first["finding"],
        tuple(f"{finding['code']} {finding['worth_s'] / took_s:.0%}" for finding in worth),
    )


def run(names: Sequence[str] = ()) -> list[Figure]:
    """Measure all planted costs, or those named, and print their table."""
    sys.path.insert(0, str(PROGRAM.parent))
    programs = importlib.import_module(PROGRAM.stem).PROGRAMS
    outcomes = []
    for name in names or programs:
        outcomes.append(measure(name))
        print(" ".join(outcomes[-1].cells()), "|", "; ".join(outcomes[-1].codes), flush=True)
        print("   ", outcomes[-1].message, flush=True)
    print_table(COLUMNS, [outcome.cells() for outcome in outcomes])
    keep(outcomes)
    far = sum(not outcome.is_close for outcome in outcomes)
    return [Figure(f"planted costs reported 10 points or more off, of {len(outcomes)}", far, len(outcomes) // 2)]


def keep(outcomes: Sequence[Outcome]) -> None:
    """Keep the outcomes for the page: measuring all in one go takes a quarter of an hour."""
    KEPT.parent.mkdir(exist_ok=True)
    rows = kept()
    KEPT.write_text(json.dumps({**rows, **{outcome.name: asdict(outcome) for outcome in outcomes}}, indent=1))


def kept() -> dict[str, dict[str, Any]]:
    """Return the outcomes measured so far, by name."""
    return dict(json.loads(KEPT.read_text())) if KEPT.exists() else {}


def write_page() -> None:
    """Write the guide's page from the outcomes kept."""
    rows = kept()
    outcomes = sorted((Outcome(**row) for row in rows.values()), key=lambda outcome: -outcome.true)
    table = tabulate([outcome.cells() for outcome in outcomes], COLUMNS, tablefmt="github", disable_numparse=True)
    close = sum(outcome.is_close for outcome in outcomes)
    in_range = sum(outcome.low - ROUNDED <= outcome.true <= outcome.high + ROUNDED for outcome in outcomes)
    torch = importlib.metadata.version("torch").partition("+")[0]
    words = PAGE_TEXT.format(
        count=len(outcomes),
        close=close,
        in_range=in_range,
        table=table,
        date=f"{datetime.date.today():%d %B %Y}".lstrip("0"),
        machine=f"{os.cpu_count()} cores of a shared machine, {platform.system()}, Python "
        f"{'.'.join(platform.python_version_tuple()[:2])}, torch {torch} on the CPU, one thread",
    )
    parts = [
        part if part.startswith(("|", "#")) else textwrap.fill(part, WIDTH, break_on_hyphens=False)
        for part in words.split("\n\n")
    ]
    PAGE.write_text("\n\n".join(parts).rstrip() + "\n")


def main() -> None:
    """Measure, or write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--page", action="store_true")
    arguments = parser.parse_args()
    if arguments.page:
        write_page()
    else:
        run(arguments.names)


if __name__ == "__main__":
    main()
