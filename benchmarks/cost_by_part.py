"""What each part of the profiler costs a step: ``python -m benchmarks.cost_by_part [--only WORD] [--seconds S]``.

CPU time throughout, because wall time changes with the load of the machine.

- The patches, call by call, as late in a run: the calls of a training step are timed with patches and without, in
  turns. In a long step the training evicts the code of the patches from the caches, so the same is measured with
  evicted caches. Reading the clock around each call evicts some, too, so that the sum is more than a step pays.
- Everything else, in a training with all on: drains, flushes, reports and epochs on the training's thread, and the
  profiler's threads.
- What the training's thread pays for the sampler and the monitor beside it (it hands over the lock, and its caches
  change): blocks of steps with them and without, in turns.
"""

import argparse
import json
import sys
import threading
from collections import Counter, defaultdict
from collections.abc import Callable
from contextlib import ExitStack
from itertools import chain, repeat
from statistics import median
from time import perf_counter_ns, thread_time_ns
from typing import Any, Final
from unittest.mock import patch

from benchmarks.children import result_of
from benchmarks.figures import Figure, median_cells, print_figures, print_table
from benchmarks.patches import SwitchablePatches
from benchmarks.switched import LOOPS, SINKS
from benchmarks.unmodified_training import step_of

TARGET: Final = 0.005  # of the time of the training, all parts together
SECONDS: Final = 20.0
CALLS: Final = ("fetch", "zero_grad", "forward", "backward", "update")
ROUNDS: Final = 120
STEPS: Final = {"warm": 100, "cold": 10}  # timed in a round
WARM_UP: Final = 40  # steps: changing a class resets the interpreter's specialized lookups
FIRST_STEPS: Final = 8  # of these, in which the patches find out what the calls are
EVICTED_BYTES: Final = 16_000_000
PIPELINE: Final = {"drain": "drains", "flush": "flushes", "report": "reports", "roll_over_epoch": "epochs"}
BLOCK_NS: Final = 500_000_000
MICROSECONDS: Final = 1e3


def run(only: str = "", seconds: float = SECONDS) -> list[Figure]:
    """Measure, print and return the share of each training that the profiler takes; takes about 3 minutes."""
    calls: dict[str, dict[str, list[float]]] = result_of("benchmarks.cost_by_part", "--calls", is_on=False)
    print(f"Patches: CPU us added to each call of a step, {ROUNDS} rounds in turns; medians and standard errors")
    rows = [
        [call, *(cell for state in STEPS for cell in median_cells(calls[state][call], 1))] for call in (*CALLS, "all")
    ]
    print_table(["call", *(cell for state in STEPS for cell in (f"{state} caches", "+-"))], rows)
    chosen = result_of("benchmarks.unmodified_training", "--batches", is_on=False)
    figures = []
    for ms, kind in LOOPS.items():
        if only not in f"{ms} ms":
            continue
        arguments = ("--inside", ms, str(chosen[str(kind.step_ms)]), str(seconds))
        result = result_of("benchmarks.cost_by_part", *arguments, is_on=True, sinks=SINKS)
        patches_us = median(calls["warm" if float(ms) < 1 else "cold"]["all"])
        parts = {"patches": patches_us, **result["parts"]}
        step_us, total_us = result["step us"], sum(parts.values())
        print(f"A step of {step_us / MICROSECONDS:.2f} ms, {result['steps']} of them, all on")
        rows = [[part, f"{us:.1f}", f"{us / step_us:.3%}"] for part, us in parts.items()]
        print_table(
            ["part", "CPU us a step", "of the step"], [*rows, ["all", f"{total_us:.1f}", f"{total_us / step_us:.3%}"]]
        )
        print(f"CPU of the training's thread, sampler and monitor on over off, {len(result['beside'])} pairs of blocks")
        print_table(["median", "+-"], [median_cells(result["beside"])])
        figures.append(Figure(f"steps of {ms} ms: CPU of all parts, of the time", total_us / step_us, TARGET, "", 4))
    print_figures(figures)
    return figures


def measure_calls() -> dict[str, dict[str, list[float]]]:
    """Return for each state of the caches and each call the CPU us that patches add, one a round."""
    import torch

    torch.set_num_threads(1)
    patches, step = SwitchablePatches(), _TimedStep()
    added: dict[str, dict[str, list[float]]] = {state: defaultdict(list) for state in STEPS}
    for number in range(-1, ROUNDS):
        for state, steps in STEPS.items():
            us: dict[bool, dict[str, float]] = {}
            for is_on in (True, False) if number % 2 else (False, True):
                patches.install(patches.names if is_on else ())
                step.run(FIRST_STEPS)
                patches.skip_early_steps()
                step.run(WARM_UP)
                us[is_on] = step.run(steps, state == "cold")
                patches.uninstall()
            if number < 0:
                continue
            for call in CALLS:
                added[state][call].append(us[True][call] - us[False][call])
            added[state]["all"].append(sum(us[True].values()) - sum(us[False].values()))
    return added


class _TimedStep:
    """The step of the smallest training with a loader, each call timed alone."""

    def __init__(self) -> None:
        import torch
        from torch.utils.data import DataLoader

        from benchmarks.programs.tiny_training import make

        model, criterion = make(), torch.nn.MSELoss()
        optimizer = torch.optim.SGD(model.parameters(), 0.01)
        data: Any = [(torch.randn(16, 8), torch.randn(16, 1))] * 4096
        batches = chain.from_iterable(repeat(DataLoader(data, batch_size=None)))
        made: dict[str, Any] = {}

        def fetch() -> None:
            made["x"], made["y"] = next(batches)

        def forward() -> None:
            made["loss"] = criterion(model(made["x"]), made["y"])

        self._calls: dict[str, Callable[[], Any]] = {
            "fetch": fetch,
            "zero_grad": lambda: optimizer.zero_grad(),  # looked up each time, as the patch is
            "forward": forward,
            "backward": lambda: made["loss"].backward(),
            "update": optimizer.step,
        }
        self._large = bytearray(EVICTED_BYTES)
        self._lines = bytes(EVICTED_BYTES // 64)

    def run(self, steps: int, is_cold: bool = False) -> dict[str, float]:
        """Return the median CPU us of each call."""
        ns: dict[str, list[int]] = {call: [] for call in self._calls}
        for _ in range(steps):
            for name, call in self._calls.items():
                if is_cold:
                    self._large[::64] = self._lines
                begin_ns = thread_time_ns()
                call()
                ns[name].append(thread_time_ns() - begin_ns)
        return {name: median(values) / MICROSECONDS for name, values in ns.items()}


class _Parts:
    """CPU time of the session's work on this thread, and of the profiler's threads; ns."""

    def __init__(self, session: Any, stack: ExitStack) -> None:
        self.on_training: Counter[str] = Counter()
        self._inner_ns = [0]  # of calls inside of the call under way
        self._thread = threading.get_ident()
        for name, part in PIPELINE.items():
            timed = self._timed(part, getattr(session.run, name))
            stack.enter_context(patch.object(session.run, name, timed))

    def _timed(self, part: str, work: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*arguments: Any, **named: Any) -> Any:
            if threading.get_ident() != self._thread:
                return work(*arguments, **named)
            self._inner_ns.append(0)
            begin_ns = thread_time_ns()
            try:
                return work(*arguments, **named)
            finally:
                took_ns = thread_time_ns() - begin_ns
                self.on_training[f"{part}, training's thread"] += took_ns - self._inner_ns.pop()
                self._inner_ns[-1] += took_ns

        return timed

    def so_far(self) -> Counter[str]:
        """Return the CPU ns of each part since the begin."""
        from training_profiler.safety.fault_guard import OWN_THREADS
        from training_profiler.sampling.lock_watch import python_threads, thread_cpu_ns

        threads = {
            f"thread of {each.name.removeprefix(OWN_THREADS)}": thread_cpu_ns(each.native_id) or 0
            for each in python_threads()
            if each.name.startswith(OWN_THREADS)
        }
        return Counter(self.on_training) + Counter(threads)


def measure(ms: str, batch: str, seconds: str) -> dict[str, Any]:
    """Return what the parts of a session cost a step of the training, and what its own thread pays beside it."""
    import torch

    from training_profiler import api

    torch.set_num_threads(1)
    begin_ns = perf_counter_ns()
    api.start_instrumentation(begin_ns)
    step = step_of(int(batch), *LOOPS[ms].arguments)
    step()
    session = api._process.session
    with ExitStack() as stack:
        parts = _Parts(session, stack)
        begin_ns, steps, before = perf_counter_ns(), 0, parts.so_far()
        while perf_counter_ns() - begin_ns < float(seconds) * 1e9:
            step()
            steps += 1
        wall_ns, after = perf_counter_ns() - begin_ns, parts.so_far()
        after.subtract(before)
    return {
        "steps": steps,
        "step us": wall_ns / steps / MICROSECONDS,
        "parts": {part: ns / steps / MICROSECONDS for part, ns in after.items()},
        "beside": _beside(session, step, wall_ns / steps, round(float(seconds))),
    }


def _beside(session: Any, step: Callable[[], None], step_ns: float, pairs: int) -> list[float]:
    """Return ratios of CPU time of this thread in neighbouring blocks, sampler and monitor on over off."""
    samplers, settings, ratios = session.run.samplers, session.settings, []
    steps = max(2, round(BLOCK_NS / step_ns))
    for pair in range(pairs):
        cpu_ns = {}
        for is_on in (True, False) if pair % 2 else (False, True):
            samplers.lines.start(settings.sample_hz if is_on else 0, perf_counter_ns())
            samplers.machine.start(settings.monitor_s if is_on else 0)
            begin_ns = thread_time_ns()
            for _ in range(steps):
                step()
            cpu_ns[is_on] = thread_time_ns() - begin_ns
        ratios.append(cpu_ns[True] / cpu_ns[False])
    return ratios


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="part of the length of the steps to measure, such as 50")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="of each training")
    parser.add_argument("--inside", nargs=3, help=argparse.SUPPRESS)
    parser.add_argument("--calls", action="store_true", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.inside or chosen.calls:
        stdout, sys.stdout = sys.stdout, sys.stderr
        json.dump(measure(*chosen.inside) if chosen.inside else measure_calls(), stdout)
        stdout.flush()
    else:
        run(chosen.only, chosen.seconds)
