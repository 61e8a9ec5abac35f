"""How often ``training-profiler compare`` is wrong, and how often it finds a difference of 3%.

    python -m benchmarks.comparison                     # 1,000 simulated pairs of equal runs, and 1,000 that differ
    python -m benchmarks.comparison --real 20 --busy 4  # pairs of real runs of one program, beside 4 busy processes

Step times are simulated as factors around 1: an autoregressive process (a slow step follows a slow one more often than
not), drift of its own in each run, and rare long steps.
"""

import argparse
import json
import math
import multiprocessing
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from training_profiler.comparison.compare import NOT_SHOWN, SLOWER, compare
from training_profiler.comparison.run_series import RunSeries, Stretch

STEPS = 500
SPREAD = 0.05
DIFFERENCE = 0.03
PROGRAM = Path(__file__).parent / "programs" / "compared_training.py"


class Noise(NamedTuple):
    """A kind of simulated steps."""

    name: str
    memory: float  # correlation of a step with the next
    drift: Callable[[np.random.Generator, Any], Any]


def _none(random: np.random.Generator, at: Any) -> Any:
    return 0 * at


def _walk(random: np.random.Generator, at: Any) -> Any:
    return 0.01 * np.cumsum(random.standard_normal(len(at))) / math.sqrt(len(at))


def _rise(random: np.random.Generator, at: Any) -> Any:
    return 0.01 * random.standard_normal() * at


def _wave(random: np.random.Generator, at: Any) -> Any:
    return 0.01 * np.sin(2 * np.pi * ((1 + 2 * random.random()) * at + random.random()))


def _pauses(random: np.random.Generator, at: Any) -> Any:
    return np.where(random.random(len(at)) < 0.01, 1.5, 0.0)


KINDS = (
    Noise("independent", 0.0, _none),
    Noise("autocorrelated", 0.5, _none),
    Noise("strongly autocorrelated", 0.7, _none),
    Noise("and a random walk of 1%", 0.5, _walk),
    Noise("and a rise of 1%, of its own", 0.5, _rise),
    Noise("and waves of 1%", 0.5, _wave),
    Noise("and pauses in 1% of the steps", 0.5, _pauses),
)


def simulated(kind: Noise, random: np.random.Generator, factor: float = 1.0) -> RunSeries:
    """Return a run of 500 steps."""
    shocks = random.standard_normal(STEPS + 100)
    for i in range(1, len(shocks)):
        shocks[i] = kind.memory * shocks[i - 1] + math.sqrt(1 - kind.memory**2) * shocks[i]
    factors = np.exp(SPREAD * shocks[100:] + kind.drift(random, np.arange(STEPS) / STEPS))
    step_s = 0.1 * factor * factors
    return RunSeries(
        [Stretch(step_s[i : i + 50], sections={"forward_pass": step_s[i : i + 50]}) for i in range(0, STEPS, 50)]
    )


def count_verdicts(pairs: int, seed: int) -> None:
    """Print the part of wrong verdicts about equal runs, and of differences of 3% that are found."""
    random = np.random.default_rng(seed)
    print(f"{pairs} pairs of {STEPS} steps that vary by {SPREAD:.0%}: wrong for equal runs; {DIFFERENCE:.0%} found")
    for kind in KINDS:
        equal = Counter(compare(simulated(kind, random), simulated(kind, random)).verdict for _ in range(pairs))
        other = Counter(
            compare(simulated(kind, random), simulated(kind, random, 1 + DIFFERENCE)).verdict for _ in range(pairs)
        )
        print(f"  {kind.name:32} {1 - equal[NOT_SHOWN] / pairs:6.1%} {other[SLOWER] / pairs:6.1%}", flush=True)


def compare_real_runs(pairs: int, busy: int) -> None:
    """Run one program twice for each pair, and print the verdicts."""
    verdicts: Counter[str] = Counter()
    command = [sys.executable, "-m", "training_profiler"]
    with tempfile.TemporaryDirectory() as folder, _busy_processes(busy):
        environment = {**os.environ, "RECTIFIED_FLOW_PROFILE_DIR": folder, "RECTIFIED_FLOW_PROFILE_LOG_EVERY": "0"}
        for pair in range(pairs):
            for _ in range(2):
                run = [*command, "run", str(PROGRAM)]
                subprocess.run(run, env=environment, check=True, stdout=subprocess.DEVNULL)
            done = subprocess.run([*command, "compare", "--json"], env=environment, check=True, capture_output=True)
            data = json.loads(done.stdout)
            verdicts[data["verdict"]] += 1
            typical, lost = data["typical"], [data["steps"][side]["lost_to_others"] for side in ("before", "after")]
            print(
                f"  pair {pair + 1}: {data['verdict']}: {typical['relative']:+.1%} "
                f"({typical['low']:+.1%} to {typical['high']:+.1%}), mean {data['mean']['relative']:+.1%}, lost {lost}",
                flush=True,
            )
    print(dict(verdicts))


@contextmanager
def _busy_processes(count: int) -> Iterator[None]:
    processes = [multiprocessing.Process(target=_spin, daemon=True) for _ in range(count)]
    for process in processes:
        process.start()
    try:
        yield
    finally:
        for process in processes:
            process.kill()


def _spin() -> None:
    while True:
        pass


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--real", type=int, default=0, metavar="PAIRS")
    parser.add_argument("--busy", type=int, default=0, metavar="PROCESSES")
    arguments = parser.parse_args()
    if arguments.real:
        compare_real_runs(arguments.real, arguments.busy)
    else:
        count_verdicts(arguments.pairs, arguments.seed)


if __name__ == "__main__":
    main()
