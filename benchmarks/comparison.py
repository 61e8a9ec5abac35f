"""How often ``training-profiler compare`` is wrong, and how often it finds a difference of 3%.

    python -m benchmarks.comparison                     # 1,000 simulated pairs of equal runs, and 1,000 that differ
    python -m benchmarks.comparison --real 20 --busy 4  # pairs of real runs of one program, beside 4 busy processes
    python -m benchmarks.comparison --real 20 --steps 2000  # longer runs, beside whatever else the machine does

Step times are simulated as factors around 1: an autoregressive process (a slow step follows a slow one more often than
not), drift of its own in each run, rare long steps, and a machine whose speed wanders while the runs last, or lies
still during each.
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

from training_profiler.base.units import MS_PER_S
from training_profiler.model.series import RankSeries, Stretch
from training_profiler.statistics.compare import FASTER, SLOWER, compare

STEPS = 500
SPREAD = 0.05
STATE = 0.025
DIFFERENCES = (0.03, 0.10)
PROGRAM = Path(__file__).parent / "programs" / "compared_training.py"


class Noise(NamedTuple):
    """A kind of simulated steps."""

    name: str
    memory: float  # correlation of a step with the next
    drift: Callable[[np.random.Generator, Any], Any]  # by the part of the run
    run_s: float = 50.0


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


def _own_state(random: np.random.Generator, at: Any) -> Any:
    return 0 * at + STATE * random.standard_normal()


def _machine(run_s: float, forgotten_s: float) -> Noise:
    """Return steps on a machine whose speed wanders, and is forgotten after so many seconds."""

    def drift(random: np.random.Generator, at: Any) -> Any:
        kept = math.exp(-run_s / len(at) / forgotten_s)
        state = random.standard_normal()
        states = []
        for shock in random.standard_normal(len(at)):
            states.append(state)
            state = kept * state + math.sqrt(1 - kept**2) * shock
        return STATE * np.array(states)

    return Noise(f"machine wanders in {forgotten_s:g} s, runs of {run_s:g} s", 0.5, drift, run_s)


KINDS = (
    Noise("independent", 0.0, _none),
    Noise("autocorrelated", 0.5, _none),
    Noise("strongly autocorrelated", 0.7, _none),
    Noise("and a random walk of 1%", 0.5, _walk),
    Noise("and a rise of 1%, of its own", 0.5, _rise),
    Noise("and waves of 1%", 0.5, _wave),
    Noise("and pauses in 1% of the steps", 0.5, _pauses),
    *(_machine(run_s, 2.5) for run_s in (1.0, 5.0, 20.0, 50.0, 200.0)),
    *(_machine(run_s, 10.0) for run_s in (1.0, 50.0)),
    Noise("each run has a state, runs of 1 s", 0.5, _own_state, 1.0),
    Noise("each run has a state, runs of 50 s", 0.5, _own_state, 50.0),
)


def simulated(kind: Noise, random: np.random.Generator, factor: float = 1.0) -> RankSeries:
    """Return a run of 500 steps."""
    shocks = random.standard_normal(STEPS + 100)
    for i in range(1, len(shocks)):
        shocks[i] = kind.memory * shocks[i - 1] + math.sqrt(1 - kind.memory**2) * shocks[i]
    factors = np.exp(SPREAD * shocks[100:] + kind.drift(random, np.arange(STEPS) / STEPS))
    step_ns = kind.run_s / STEPS * factor * factors * 1e9
    parts = [step_ns[begin : begin + 50] for begin in range(0, STEPS, 50)]
    stretches = tuple(Stretch(0, 0, 0, part, (), 1, {"forward_pass": part}, 0, {}) for part in parts)
    return RankSeries(0, "", 0, 0, stretches, (), {}, {})


def count_verdicts(pairs: int, seed: int) -> None:
    """Print the part of wrong verdicts about equal runs, and of real differences that are found."""
    random = np.random.default_rng(seed)
    heads = "".join(f"{f'{each:.0%} found':>11}" for each in DIFFERENCES)
    print(
        f"{pairs} pairs of runs of {STEPS} steps that vary by {SPREAD:.0%}; the machine's state varies by {STATE:.1%}"
    )
    print(f"  {'':40}{'wrong':>8}{heads}")
    for kind in KINDS:
        wrong, *found = (
            sum(
                compare(simulated(kind, random), simulated(kind, random, 1 + difference)).verdict in counted
                for _ in range(pairs)
            )
            / pairs
            for difference, counted in ((0.0, (FASTER, SLOWER)), *((each, (SLOWER,)) for each in DIFFERENCES))
        )
        print(f"  {kind.name:40}{wrong:8.1%}{''.join(f'{part:11.1%}' for part in found)}", flush=True)


def compare_real_runs(pairs: int, busy: int, steps: int) -> None:
    """Run one program twice for each pair, and print the verdicts: any that names a difference is false."""
    verdicts: Counter[str] = Counter()
    command = [sys.executable, "-m", "training_profiler"]
    with tempfile.TemporaryDirectory() as folder, _busy_processes(busy):
        environment = {**os.environ, "RECTIFIED_FLOW_PROFILE_DIR": folder, "RECTIFIED_FLOW_PROFILE_LOG_EVERY": "0"}
        for pair in range(pairs):
            for _ in range(2):
                run = [*command, "run", str(PROGRAM), str(steps)]
                subprocess.run(run, env=environment, check=True, stdout=subprocess.DEVNULL)
            done = subprocess.run([*command, "compare", "--json"], env=environment, check=True, capture_output=True)
            data = json.loads(done.stdout)
            verdicts[data["verdict"]] += 1
            typical, mean = data["typical"], data["mean"]
            step_ms = " and ".join(f"{typical[side] * MS_PER_S:.3g}" for side in ("before_s", "after_s"))
            lost = " and ".join(
                f"{data['steps'][side]['cpu_share_of_others'] or 0:.0%}" for side in ("before", "after")
            )
            print(
                f"  pair {pair + 1}: {data['verdict']}: {typical['relative']:+.1%} "
                f"({typical['low']:+.1%} to {typical['high']:+.1%}), mean {mean['relative']:+.1%}, "
                f"steps of {step_ms} ms, lost {lost}",
                flush=True,
            )
    print(f"{verdicts[FASTER] + verdicts[SLOWER]} false verdicts of {pairs}")


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
    parser.add_argument("--steps", type=int, default=400, help="of a real run")
    parser.add_argument("--busy", type=int, default=0, metavar="PROCESSES")
    arguments = parser.parse_args()
    if arguments.real:
        compare_real_runs(arguments.real, arguments.busy, arguments.steps)
    else:
        count_verdicts(arguments.pairs, arguments.seed)


if __name__ == "__main__":
    main()
