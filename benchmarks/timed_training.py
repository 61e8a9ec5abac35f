"""Runs a training module and reports CPU and wall time of each block of steps; a child of ``training_ratio``.

``python -m benchmarks.timed_training REPORT_FD GO_FD BLOCK_STEPS MODULE [arguments of the module]``

After every block it writes ``cpu_ns wall_ns`` to REPORT_FD and waits for a byte from GO_FD: two
trainings alternate, and no block includes the time of waiting. A block ends right after an
optimizer step, so each holds as many reports and flushes of the profiler as any other.
"""

import os
import runpy
import sys
from collections.abc import Callable
from time import perf_counter_ns, process_time_ns
from typing import Any


def turn_taker(report: int, go: int, block_steps: int) -> Callable[..., None]:
    """Return the hook to call after each optimizer step."""
    steps = 0
    cpu_ns = wall_ns = 0

    def after_step(*_: Any) -> None:
        nonlocal steps, cpu_ns, wall_ns
        steps += 1
        if steps % block_steps:
            return
        line = f"{process_time_ns() - cpu_ns} {perf_counter_ns() - wall_ns}\n"
        os.write(report, line.encode())
        if not os.read(go, 1):
            raise SystemExit("the measuring process has ended")
        cpu_ns, wall_ns = process_time_ns(), perf_counter_ns()

    return after_step


def main(report: str, go: str, block_steps: str, module: str, *arguments: str) -> None:
    """Train in this process."""
    from torch.optim.optimizer import register_optimizer_step_post_hook

    register_optimizer_step_post_hook(turn_taker(int(report), int(go), int(block_steps)))
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
