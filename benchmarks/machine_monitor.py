"""What the system monitor costs: ``python -m benchmarks.machine_monitor [--seconds S]``.

The CPU time of its thread over wall time, at one sample per second, while the process multiplies matrices; like a
training, that leaves the caches cold. Once alone and once with eight idle children, like a DataLoader's workers.
"""

import argparse
import subprocess
import sys
from time import perf_counter_ns

import torch

from benchmarks.figures import Figure, print_figures, print_table
from training_profiler.base.units import NS_PER_S, NS_PER_US
from training_profiler.sampling.machine_sampler import MachineSampler

EVERY_S = 1.0
CHILDREN = 8
MOST_CPU = 0.1  # % of one core


def run(run_s: float = 40.0) -> list[Figure]:
    """Measure, print and return the figures; takes about ``2 * run_s``."""
    rows, stats = [], []
    for children in (0, CHILDREN):
        samples, cpu_ns, wall_ns = _measured(children, run_s)
        percent = 100 * cpu_ns / wall_ns
        rows.append([children, samples, f"{cpu_ns / NS_PER_US / samples:.0f} us", f"{percent:.3f}%"])
        what = f"system monitor at {EVERY_S:g} s, {children} children, CPU of its thread, of one core"
        stats.append(Figure(what, percent, MOST_CPU, "%", 3))
    print(f"Machine monitor, a sample every {EVERY_S:g} s, beside matrix products")
    print_table(["children", "samples", "CPU per sample", "CPU over wall"], rows)
    print_figures(stats)
    return stats


def _measured(children: int, run_s: float) -> tuple[int, int, int]:
    """Return (samples, CPU of the thread in ns, wall time in ns)."""
    idle = [sys.executable, "-c", "import sys; sys.stdin.read()"]
    workers = [subprocess.Popen(idle, stdin=subprocess.PIPE) for _ in range(children)]
    monitor = MachineSampler(perf_counter_ns, lambda _, part: part())
    begin_ns = perf_counter_ns()
    monitor.start(EVERY_S)
    matrix = torch.ones(512, 512)
    try:
        while perf_counter_ns() - begin_ns < run_s * NS_PER_S:
            matrix @ matrix
    finally:
        monitor.close()
        for worker in workers:
            worker.communicate()
    return monitor.samples, monitor.cpu_ns, perf_counter_ns() - begin_ns


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=40.0, help="length of each of the two measurements")
    run(parser.parse_args().seconds)
