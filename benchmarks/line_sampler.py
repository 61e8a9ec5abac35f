"""Accuracy and cost of the line sampler: ``python -m benchmarks.line_sampler [--seconds S]``.

Accuracy: a thread spends a known part of its time in Python code, which keeps the GIL, and the rest in matrix products,
which release it. Cost: a thread only reads the clock; each sample leaves a hole in its readings. Both are measured with
CPython's own switch interval, with the sampler's, and with that and the lock in C that hands over the GIL.
"""

import argparse
from bisect import bisect_right
from collections.abc import Callable
from statistics import median
from time import perf_counter_ns
from typing import Any, NamedTuple

import torch

from benchmarks.figures import Figure, print_figures, print_table, spread
from training_profiler.base.units import NS_PER_S, NS_PER_US
from training_profiler.model.location import Sample
from training_profiler.recording.implementation import best_implementation
from training_profiler.sampling import line_sampler as switch_interval
from training_profiler.sampling.line_sampler import HANDOVER_S, LineSampler

HZ = 50
CPYTHON_S = 0.005
LEAST_SEEN = 0.6  # of a function's true share
MOST_COST = 0.01  # of the time of a thread that runs Python alone; a training mostly waits for torch
HOLE_NS = 2_000  # two readings of the clock are closer than this
WINDOWS = 8  # the machine's other work makes holes too; the quietest half of the windows counts


def run(run_s: float = 16.0) -> list[Figure]:
    """Measure, print and return the figures; takes about ``9 * run_s``."""
    rows, seen, cost = [], 0.0, 0.0
    best = best_implementation().new_stop
    for handover_s, new_stop in ((CPYTHON_S, None), (HANDOVER_S, None), (HANDOVER_S, best)):
        kind = Kind(handover_s, new_stop)
        true_share, seen_share, samples = _seen(kind, run_s)
        true_part, seen_part = _seen_between_operators(kind, run_s)
        holes_us, cpu_us = _holes(kind, run_s)
        lower, middle, upper = spread(holes_us)
        seen, cost = seen_share / true_share, middle * HZ / 1e6
        rows.append(
            [
                f"{handover_s * 1e3:g} ms{'' if new_stop is None else ', handed over'}",
                samples,
                f"{true_share:.1%}",
                f"{seen_share:.1%}",
                f"{true_part:.1%}",
                f"{seen_part:.1%}",
                f"{middle:.0f} us ({lower:.0f} - {upper:.0f})",
                f"{cpu_us:.0f} us",
            ]
        )
    print(f"Line sampler at {HZ} Hz: a function of 3 ms of Python beside 7 ms of matrix products; one of 40 us")
    print("between small operators, beside a long operator; a busy thread")
    print_table(["GIL after", "samples", "true", "seen", "true", "seen", "hole a sample", "CPU a sample"], rows)
    stats = [
        Figure("line sampler, part of a Python function not seen", 1 - seen, 1 - LEAST_SEEN, "", 2),
        Figure(f"line sampler at {HZ} Hz, time taken from a thread of pure Python", cost, MOST_COST, "", 4),
    ]
    print_figures(stats)
    return stats


class Kind(NamedTuple):
    """How the sampler gets the GIL."""

    after_s: float
    new_stop: Callable[[], Any] | None


def _sampled(kind: Kind, work: Callable[[], None]) -> tuple[list[Sample], LineSampler]:
    """Return the samples of ``work``."""
    switch_interval.HANDOVER_S = kind.after_s  # type: ignore[misc]
    sampler = LineSampler(perf_counter_ns, lambda _, part: part(), new_stop=kind.new_stop)
    sampler.start(HZ, perf_counter_ns())
    try:
        sampler.pop_samples()
        work()
    finally:
        sampler.close()
        switch_interval.HANDOVER_S = HANDOVER_S  # type: ignore[misc]
    return sampler.pop_samples(), sampler


def augment(count: int) -> int:
    """Keep the GIL."""
    total = 0
    for i in range(count):
        total += i * i
    return total


def multiply(matrix: torch.Tensor, count: int) -> None:
    """Leave the GIL to others."""
    for _ in range(count):
        matrix @ matrix


def prepare(row: torch.Tensor, rows: int) -> int:
    """Keep the GIL but for a moment in each row; return the time in Python code, in ns."""
    spent_ns = 0
    for _ in range(rows):
        spent_ns += _ns_of(lambda: augment(600))
        torch.add(row, 1.0)
    return spent_ns


def _seen_between_operators(kind: Kind, run_s: float) -> tuple[float, float]:
    """Return the share of Python code between short operators, beside a long operator: true, seen."""
    torch.set_num_threads(1)
    row, matrix = torch.zeros(8), torch.ones(256, 256)
    spent_ns = [0, 0]

    def train() -> None:
        begin_ns = perf_counter_ns()
        while perf_counter_ns() < begin_ns + int(run_s * NS_PER_S):
            spent_ns[0] += prepare(row, 64)
            multiply(matrix, 1)
        spent_ns[1] += perf_counter_ns() - begin_ns

    samples, _ = _sampled(kind, train)
    functions = [location.function for _, location in samples if location]
    return spent_ns[0] / spent_ns[1], functions.count("augment") / max(1, len(functions))


def _seen(kind: Kind, run_s: float) -> tuple[float, float, int]:
    torch.set_num_threads(1)
    matrix = torch.ones(256, 256)
    count = round(3e6 / (_ns_of(lambda: augment(100_000)) / 100_000))
    products = max(1, round(7e6 / (_ns_of(lambda: multiply(matrix, 20)) / 20)))
    spent_ns = [0, 0]

    def train() -> None:
        end_ns = perf_counter_ns() + int(run_s * NS_PER_S)
        while perf_counter_ns() < end_ns:
            spent_ns[0] += _ns_of(lambda: augment(count))
            spent_ns[1] += _ns_of(lambda: multiply(matrix, products))

    samples, _ = _sampled(kind, train)
    functions = [location.function for _, location in samples if location]
    both = functions.count("augment") + functions.count("multiply")
    return spent_ns[0] / sum(spent_ns), functions.count("augment") / max(1, both), both


def _ns_of(work: Callable[[], object]) -> int:
    begin_ns = perf_counter_ns()
    work()
    return perf_counter_ns() - begin_ns


def _holes(kind: Kind, run_s: float) -> tuple[list[float], float]:
    """Return how long the busy thread stood still at each sample, and the sampler's CPU a sample, in us."""
    windows = []
    cpu_us = []
    for _ in range(WINDOWS):
        holes: list[tuple[int, int]] = []
        samples, sampler = _sampled(kind, lambda holes=holes: _read_clock(run_s / WINDOWS, holes))  # type: ignore[misc]
        begins_ns = [begin_ns for begin_ns, _ in holes]
        at = [holes[bisect_right(begins_ns, ns) - 1] for ns, _ in samples if begins_ns and begins_ns[0] <= ns]
        own = [(end_ns - begin_ns) / NS_PER_US for begin_ns, end_ns in at]
        noise_us = sum(end_ns - begin_ns for begin_ns, end_ns in holes) / NS_PER_US - sum(own)
        windows.append((noise_us, own))
        cpu_us.append(sampler.cpu_ns / NS_PER_US / max(1, sampler.samples))
    quiet = sorted(windows)[: WINDOWS // 2]
    return [hole_us for _, own in quiet for hole_us in own], median(cpu_us)


def _read_clock(run_s: float, holes: list[tuple[int, int]]) -> None:
    last_ns = perf_counter_ns()
    end_ns = last_ns + int(run_s * NS_PER_S)
    while last_ns < end_ns:
        now_ns = perf_counter_ns()
        if now_ns - last_ns > HOLE_NS:
            holes.append((last_ns, now_ns))
        last_ns = now_ns


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=16.0, help="length of each of the nine measurements")
    run(parser.parse_args().seconds)
