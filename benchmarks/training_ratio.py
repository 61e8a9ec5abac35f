"""Cost of a whole training, profiling on against off: ``python -m benchmarks.training_ratio [--pairs N]``.

A pair is two processes that train the same, one profiled; they alternate every 50 steps. Ratios are of
the steps, without imports and the first 50; those of the whole processes stand beside them.
"""

import argparse
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic
from typing import Final

from benchmarks.figures import Figure, print_figures, print_table, spread
from benchmarks.training_pair import Plan, Taken, run_pair

TARGET_RATIO: Final = 1.005
MODULE: Final = "examples.rectified_flow"
BLOCK_STEPS: Final = 50  # as many as between two reports by default
CALIBRATION_STEPS: Final = 100
FEWEST_BLOCKS: Final = 4
MOST_S: Final = 450.0  # no pair begins that would probably end later
WHAT: Final = "whole training, on / off, CPU of the steps"
RATIOS: Final[dict[str, Callable[[Taken], float]]] = {
    WHAT: lambda taken: taken.steps_cpu_s,
    "whole training, on / off, wall time of the steps": lambda taken: taken.steps_wall_s,
    "whole training, on / off, CPU of the process": lambda taken: taken.process_cpu_s,
}


def run(pairs: int = 11, run_s: float = 12.0, module: str = MODULE) -> list[Figure]:
    """Measure, print and return the ratios; takes about ``2 * pairs * (run_s + start-up)``, at most 8 minutes."""
    try:
        ratios = _measure(pairs, run_s, module)
    except RuntimeError as error:
        print(f"Not measured: {error}\n")
        return [Figure(WHAT, None, TARGET_RATIO)]
    rows = []
    for name, values in ratios.items():
        lower, middle, upper = spread(values)
        rows.append([name, f"{middle:.4f}", f"{lower:.4f} - {upper:.4f}", f"{min(values):.4f} - {max(values):.4f}"])
    print_table([f"median of {len(ratios[WHAT])} pairs", "ratio", "quartiles", "range"], rows)
    stats = [Figure(name, spread(values)[1], TARGET_RATIO, "", 4) for name, values in ratios.items()]
    print_figures(stats)
    return stats


def _measure(pairs: int, run_s: float, module: str) -> dict[str, list[float]]:
    ratios: dict[str, list[float]] = {name: [] for name in RATIOS}
    begin_s = monotonic()
    with TemporaryDirectory() as temporary:
        folder = Path(temporary)
        plan = _plan(run_s, module, folder)
        print(f"{module}, profiling on against off: {pairs} pairs of {plan.steps} steps, in blocks of {BLOCK_STEPS}")
        rows: list[list[object]] = []
        pairs_begin_s = monotonic()
        for pair in range(pairs):
            now_s = monotonic()
            if pair and now_s - begin_s + (now_s - pairs_begin_s) / pair > MOST_S:
                print(f"stopped after {pair} pairs: the machine is too slow for more in {MOST_S:.0f} s")
                break
            taken = run_pair(plan, folder / str(pair), on_first=bool(pair % 2))
            for name, seconds in RATIOS.items():
                ratios[name].append(seconds(taken[True]) / seconds(taken[False]))
            times = [f"{seconds(taken[is_on]):.2f}" for seconds in RATIOS.values() for is_on in (True, False)]
            rows.append([pair + 1, *times, *(f"{values[-1]:.4f}" for values in ratios.values())])
    kinds = ("CPU", "wall", "process")
    headers = [f"{kind} s {state}" for kind in kinds for state in ("on", "off")]
    print_table(["pair", *headers, *(f"{kind} ratio" for kind in kinds)], rows)
    return ratios


def _plan(run_s: float, module: str, folder: Path) -> Plan:
    """Return a plan whose steps take about ``run_s`` on this machine at present."""
    taken = run_pair(Plan(module, CALIBRATION_STEPS, BLOCK_STEPS), folder / "calibration", on_first=False)[False]
    blocks = max(FEWEST_BLOCKS, round(run_s / max(taken.steps_wall_s, 1e-3)))
    return Plan(module, blocks * BLOCK_STEPS, BLOCK_STEPS)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=11)
    parser.add_argument("--seconds", type=float, default=12.0, help="length of the steps of one training")
    parser.add_argument("--module", default=MODULE, help="training to run, with the flags of the example")
    arguments = parser.parse_args()
    run(arguments.pairs, arguments.seconds, arguments.module)
