"""Measures what this CPU can do, after the training and for a few hundredths of a second."""

import time
from typing import Any, Final

from training_profiler.snapshot.program import CpuSpeed

SHARE: Final = 0.001  # of the run that the measurement may take
LEAST_S, MOST_S = 0.01, 0.06
SIDE: Final = 384  # of the matrices: large enough for full speed, small enough for a millisecond
CHAIN: Final = 100  # operations of the shortest kind, forward and backward
HALF: Final = ("bfloat16", "float16")  # which a CPU without units for them computes slower than float32
DTYPES: Final = ("float32", "float64", *HALF)


def budget_s(run_s: float) -> float:
    """Return how long measuring may take after a run of ``run_s``; 0 for a run too short."""
    allowed_s = min(MOST_S, SHARE * run_s)
    return allowed_s if allowed_s >= LEAST_S else 0.0


def measure(torch: Any, dtype: str, seconds: float) -> CpuSpeed | None:
    """Return the speed of matrix products in ``dtype``, and of the shortest operations; None for another dtype."""
    if dtype not in DTYPES:
        return None
    with torch.enable_grad():
        operator_s = _best_s(lambda: _short_operations(torch), seconds / 3) / (2 * CHAIN)
    gflops = _gflops(torch, dtype, 2 * seconds / 3)
    return CpuSpeed(dtype, gflops, operator_s, _gflops(torch, "float32", seconds / 3) if dtype in HALF else 0.0)


def _gflops(torch: Any, dtype: str, seconds: float) -> float:
    with torch.no_grad():
        left, right = (torch.full((SIDE, SIDE), 0.5, dtype=getattr(torch, dtype)) for _ in range(2))
        product_s = _best_s(lambda: torch.mm(left, right), seconds)
    return 2 * SIDE**3 / product_s / 1e9


def _short_operations(torch: Any) -> None:
    value = start = torch.ones(8, requires_grad=True)
    for _ in range(CHAIN):
        value = value * 1.0
    torch.autograd.grad(value.sum(), start)


def _best_s(work: Any, seconds: float) -> float:
    """Return the shortest time of ``work``, which other programs delay now and then; at least two are made."""
    best_s, ends_s, count = float("inf"), time.perf_counter() + seconds, 0
    while count < 2 or time.perf_counter() < ends_s:
        began_s = time.perf_counter()
        work()
        best_s, count = min(best_s, time.perf_counter() - began_s), count + 1
    return max(best_s, 1e-9)
