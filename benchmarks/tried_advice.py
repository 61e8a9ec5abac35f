"""How often `training-profiler try` names a gain that is none, and how often it finds a gain of 5%.

    python -m benchmarks.tried_advice                   # 1,000 simulated sessions of 8 changes of each kind
    python -m benchmarks.tried_advice --sessions 200 --machines pauses,busy

Each session is simulated as it runs: 30 rounds of blocks of 10 steps, one of each training, in random order, then the
same with fresh processes for the changes that seemed to help. Step times are factors around 1: a slow step follows a
slow one more often than not; the machine drifts and has busy spells while the session goes on; some steps are very
long; and each process is slower or faster than the others for its whole life, as memory layouts are.
"""

import argparse
import math
from collections.abc import Callable
from typing import Any, Final, NamedTuple

import numpy as np

from training_profiler.trials.statistics import GAIN_ERROR, SCREEN_ERROR, SCREEN_LOOKS, Wave

ROUNDS, BLOCK, CHANGES = 30, 10, 8
SPREAD: Final = 0.05  # of a step
GAIN: Final = 0.05


class Machine(NamedTuple):
    """A kind of simulated sessions."""

    name: str
    memory: float  # correlation of a step with the next of the same process
    spread: float  # of a process's whole life
    drift: Callable[[np.random.Generator, int], Any]  # log factors of all steps of the machine, in their order
    pauses: float = 0.0  # part of the steps that take 2.5 times as long


def _none(random: np.random.Generator, steps: int) -> Any:
    return np.zeros(steps)


def _walk(random: np.random.Generator, steps: int) -> Any:
    return 0.2 * np.cumsum(random.standard_normal(steps)) / math.sqrt(steps)


def _rise(random: np.random.Generator, steps: int) -> Any:
    return 0.3 * random.standard_normal() * np.arange(steps) / steps


def _spells(random: np.random.Generator, steps: int) -> Any:
    """Another program comes and goes: half as slow again, for 200 steps or so at a time."""
    return 0.4 * (np.cumsum(random.random(steps) < 1 / 200) % 2)


MACHINES: Final = (
    Machine("independent steps", 0.0, 0.0, _none),
    Machine("autocorrelated", 0.7, 0.003, _none),
    Machine("and a random walk of 20%", 0.7, 0.003, _walk),
    Machine("and a rise or fall of 30%", 0.7, 0.003, _rise),
    Machine("and busy spells of 40%", 0.7, 0.003, _spells),
    Machine("and pauses in 2% of the steps", 0.7, 0.003, _walk, 0.02),
    Machine("and processes apart by 1%", 0.7, 0.007, _walk),
)


def simulated_wave(machine: Machine, random: np.random.Generator, wave: Wave, factors: dict[str, float]) -> Wave:
    """Return a wave that has run to its end: to its last round, or until all changes are decided."""
    drift = machine.drift(random, ROUNDS * BLOCK * len(wave.block_s))
    level = {name: machine.spread * random.standard_normal() for name in wave.block_s}
    shock = {name: random.standard_normal() for name in wave.block_s}
    at = 0
    while wave.open:
        block_s = {}
        for name in random.permutation(wave.open):
            steps = np.empty(BLOCK)
            for i, fresh in enumerate(random.standard_normal(BLOCK)):
                shock[name] = machine.memory * shock[name] + math.sqrt(1 - machine.memory**2) * fresh
                steps[i] = SPREAD * shock[name] + level[name]
            steps += drift[at : at + BLOCK] + math.log(2.5) * (random.random(BLOCK) < machine.pauses)
            at += BLOCK
            block_s[str(name)] = factors.get(name, 1.0) * float(np.exp(steps).mean())
        wave.add_round(block_s)
    return wave


def simulated_session(machine: Machine, random: np.random.Generator, factors: dict[str, float]) -> set[str]:
    """Return the changes of which the session names a gain."""
    names = [f"change {number}" for number in range(CHANGES)]
    screen = simulated_wave(machine, random, Wave.of(names, ROUNDS, SCREEN_ERROR, SCREEN_LOOKS), factors)
    if not screen.shown:
        return set()
    return simulated_wave(machine, random, Wave.of(sorted(screen.shown), ROUNDS, GAIN_ERROR), factors).shown


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sessions", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--machines", default="", help="words in their names, with commas between; default: all")
    arguments = parser.parse_args()
    wanted = arguments.machines.split(",")
    steps = f"{ROUNDS * BLOCK} steps of each, which vary by {SPREAD:.0%}"
    print(f"{arguments.sessions} sessions of {CHANGES} changes, {steps}")
    print(f"{'':34}{'A/A: a gain named':>18}{'5% found':>10}{'others named':>14}")
    for number, machine in enumerate(MACHINES):
        if not any(word in machine.name for word in wanted):
            continue
        random = np.random.default_rng([arguments.seed, number])
        false = sum(bool(simulated_session(machine, random, {})) for _ in range(arguments.sessions))
        found = [simulated_session(machine, random, {"change 3": 1 - GAIN}) for _ in range(arguments.sessions)]
        true = sum("change 3" in names for names in found)
        others = sum(bool(names - {"change 3"}) for names in found)
        rates = [count / arguments.sessions for count in (false, true, others)]
        print(f"  {machine.name:32}{rates[0]:18.1%}{rates[1]:10.1%}{rates[2]:14.1%}", flush=True)


if __name__ == "__main__":
    main()
