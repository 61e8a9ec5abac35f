"""Cost of automatic instrumentation in one process: ``python -m benchmarks.switched [--only MS]``.

Two processes of the same training differ by up to 4 % because of their memory layout, which is more than the cost
(``unmodified_training`` compares processes). Here one process trains, and every fifth of a second the patches, the line
sampler and the system monitor are switched on or off. Drains, sums, the journal and the trackers (JSON lines, and
TensorBoard if installed) run while they are on. A pair is two successive blocks. Blocks of long steps last a second, so
that the monitor samples as often as in a training. Each block is as late in a run, because patches that are installed
again look at inputs in each of the next 64 steps, which is all of a block of long steps.
"""

import argparse
import json
import sys
from importlib.util import find_spec
from statistics import median
from time import perf_counter_ns, process_time_ns
from typing import Any, Final

from benchmarks.children import result_of
from benchmarks.figures import Figure, median_cells, print_figures, print_table
from benchmarks.patches import skip_early_steps
from benchmarks.unmodified_training import KINDS, TINY_TARGET_US, step_of

BLOCK_MS: Final = 200
LONG_BLOCK_MS: Final = 1000  # the monitor's interval
LONG_STEP_MS: Final = 20
PAIRS_MS: Final = 60 * BLOCK_MS  # of one state in a process
SINKS: Final = ",".join(name for name in ("tensorboard", "jsonl") if name == "jsonl" or find_spec(name))
WARM_UP_SHARE: Final = 0.5  # of a block: changing a class resets the interpreter's specialized lookups
FIRST_STEPS: Final = 4  # of a block, in which the patches find out what the calls are
PROCESSES: Final = 3
LOOPS: Final = {f"{kind.step_ms:g}": kind for kind in KINDS if kind.what.startswith("loop")}


def run(only: str = "") -> list[Figure]:
    """Measure, print and return the ratios of wall times, on over off; takes about 6 minutes."""
    stats = []
    rows = []
    chosen = result_of("benchmarks.unmodified_training", "--batches", is_on=False)
    for ms, kind in LOOPS.items():
        if only not in ("", ms):
            continue
        results = [
            result_of("benchmarks.switched", "--inside", ms, str(chosen[str(kind.step_ms)]), is_on=True, sinks=SINKS)
            for _ in range(PROCESSES)
        ]
        walls = [ratio for result in results for ratio in result["wall"]]
        cpus = [ratio for result in results for ratio in result["cpu"]]
        off_ms = median(result["off ms"] for result in results)
        added_us = 1e3 * off_ms * (median(cpus) - 1)
        rows.append(
            [f"{ms} ms", f"{off_ms:.2f}", len(walls), *median_cells(walls), *median_cells(cpus), f"{added_us:+.1f}"]
        )
        if kind.target is None:
            stats.append(Figure(f"step of {ms} ms: CPU added, all on", added_us, TINY_TARGET_US, "us", 1))
        else:
            stats.append(Figure(f"steps of {ms} ms: wall, all on over off", median(walls), kind.target, "", 4))
    print(f"Patches, sampler, monitor, sums, journal and trackers ({SINKS}) on over off, alternating in one process:")
    print("medians and their standard errors")
    print_table(["steps of", "ms measured", "pairs", "wall", "+-", "CPU", "+-", "CPU us a step"], rows)
    print_figures(stats)
    return stats


class SwitchableProfiling:
    """The instrumentation and the samplers of this process, to be switched on and off."""

    def __init__(self) -> None:
        import torch

        from training_profiler import api

        api.start_instrumentation(perf_counter_ns())
        self._torch, self._process = torch, api._process
        self._is_on = True

    def skip_early_steps(self) -> None:
        """Go on as after the first steps of a run."""
        assert self._process.instrumentation is not None
        skip_early_steps(self._process.instrumentation)

    def switch(self, is_on: bool) -> None:
        """Install patches and samplers, or remove them."""
        if is_on == self._is_on:
            return
        self._is_on = is_on
        instrumentation, session = self._process.instrumentation, self._process.session
        assert instrumentation is not None
        assert session is not None
        if is_on:
            instrumentation.install(self._torch)
            session.run.samplers.lines.start(session.settings.sample_hz, perf_counter_ns())
            session.run.samplers.machine.start(session.settings.monitor_s)
        else:
            instrumentation.context.guarded(instrumentation.close)
            session.run.samplers.lines.close()
            session.run.samplers.machine.close()


def measure(ms: float, batch: int, *size: str) -> dict[str, Any]:
    """Return the ratios of wall and CPU time of neighbouring blocks, on over off, and the step time when off."""
    import torch

    torch.set_num_threads(1)
    profiling = SwitchableProfiling()
    step = step_of(batch, *size)
    for _ in range(20):
        step()
    block_ms = LONG_BLOCK_MS if ms >= LONG_STEP_MS else BLOCK_MS
    steps = max(2, round(block_ms / ms))

    def block(is_on: bool) -> tuple[int, int]:
        profiling.switch(is_on)
        for number in range(max(FIRST_STEPS + 2, round(WARM_UP_SHARE * steps))):
            step()
            if is_on and number == FIRST_STEPS:
                profiling.skip_early_steps()
        wall_ns, cpu_ns = perf_counter_ns(), process_time_ns()
        for _ in range(steps):
            step()
        return perf_counter_ns() - wall_ns, process_time_ns() - cpu_ns

    ratios: dict[str, list[float]] = {"wall": [], "cpu": []}
    off_ns = []
    for pair in range(max(20, PAIRS_MS // block_ms)):
        times = {is_on: block(is_on) for is_on in ((True, False) if pair % 2 else (False, True))}
        for at, name in enumerate(("wall", "cpu")):
            ratios[name].append(times[True][at] / times[False][at])
        off_ns.append(times[False][0])
    return ratios | {"off ms": median(off_ns) / steps / 1e6}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="the length of the steps to measure in ms, such as 5")
    parser.add_argument("--inside", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.inside:
        stdout, sys.stdout = sys.stdout, sys.stderr
        ms, batch = arguments.inside
        json.dump(measure(float(ms), int(batch), *LOOPS[ms].arguments), stdout)
        stdout.flush()
    else:
        run(arguments.only)
