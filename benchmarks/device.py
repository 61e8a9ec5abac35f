"""What device time costs a training on an accelerator, on over off in one process.

``python -m benchmarks.device [--pairs N] [--only WORD]``.

One process trains, as in ``switched``; patches, line sampler and device events are switched on and off block by block.
A block ends when the device has finished its work. Without an accelerator nothing is measured; the reason is printed.
"""

import argparse
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from itertools import chain, repeat
from statistics import median
from time import perf_counter_ns
from typing import Any, Final

from benchmarks.children import result_of
from benchmarks.figures import Figure, median_cells, print_figures, print_table
from benchmarks.switched import SwitchableProfiling

BLOCK_S: Final = 0.5
QUEUED: Final = 30  # steps after each block
PAIRS: Final = 40
TARGET: Final = 1.005
TARGET_10_MS: Final = 1.002


@dataclass(frozen=True, slots=True)
class Size:
    """A transformer that is trained on batches of ``batch`` sequences of 256."""

    width: int
    layers: int
    batch: int
    target: float = TARGET


# Lengths of steps are about those on an H100. The host is behind in short steps, the device in all others.
SIZES: Final = {
    "short": Size(256, 2, 8),
    "of 10 ms": Size(2048, 1, 6, TARGET_10_MS),
    "middling": Size(1024, 4, 16),
    "long": Size(2048, 6, 32),
}


def run(pairs: int = PAIRS, only: str = "") -> list[Figure]:
    """Measure, print and return the ratios of wall times, on over off; takes about 5 minutes."""
    sizes = {name: size for name, size in SIZES.items() if only in name}
    what = "steps with device time, wall, all on over off"
    why_not = _why_not()
    if why_not is not None:
        print(f"Device time: not measured, for {why_not}\n")
        return [Figure(f"{name} {what}", None, size.target) for name, size in sizes.items()]
    stats, rows = [], []
    for name, size in sizes.items():
        found = result_of("benchmarks.device", "--inside", name, "--pairs", str(pairs), is_on=True)
        cells = [f"{found['off ms']:.2f}", len(found["wall"]), *median_cells(found["wall"])]
        queued = [f"{found['queued ms']:.2f}", *median_cells(found["queued us"], 1)]
        rows.append([name, *cells, *queued, f"{found['stamp us']:.1f}", found["spans"], found["left out"]])
        stats.append(Figure(f"{name} {what}", median(found["wall"]), size.target, "", 4))
    print(f"Everything on over off, alternating in one process, on {found['device']}")
    queued = ["ms to queue", "us added to it", "+-"]
    headers = ["steps", "ms", "pairs", "wall", "+-", *queued, "us a stamp", "spans measured", "left out"]
    print_table(headers, rows)
    print_figures(stats)
    return stats


def _why_not() -> str | None:
    import torch

    if not hasattr(torch, "accelerator"):
        return f"torch {torch.__version__} has no torch.accelerator"
    if torch.accelerator.current_accelerator() is None or not torch.accelerator.is_available():
        return "torch finds no accelerator on this machine"
    return None


def step_of(size: Size) -> Callable[[], None]:
    """Return a step of a training of this size."""
    import torch

    kind = torch.accelerator.current_accelerator().type
    layer = torch.nn.TransformerEncoderLayer(size.width, 8, 4 * size.width, batch_first=True, norm_first=True)
    model = torch.nn.TransformerEncoder(layer, size.layers, enable_nested_tensor=False).to(kind)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-5)
    data = torch.utils.data.TensorDataset(torch.randn(8 * size.batch, 256, size.width))
    loader = torch.utils.data.DataLoader(data, size.batch, pin_memory=True)
    fetched = chain.from_iterable(repeat(loader))

    def step() -> None:
        (batch,) = next(fetched)
        optimizer.zero_grad()
        model(batch.to(kind, non_blocking=True)).square().mean().backward()
        optimizer.step()

    return step


def measure(size: Size, pairs: int) -> dict[str, Any]:
    """Return wall times of neighbouring blocks, on over off, what queueing a step takes, and what was stamped."""
    watching = SwitchableProfiling()
    import torch

    step, synchronize = step_of(size), torch.accelerator.synchronize
    for _ in range(20):
        step()
    synchronize()
    begin_ns = perf_counter_ns()
    for _ in range(10):
        step()
    synchronize()
    steps = max(4, round(BLOCK_S * 1e10 / (perf_counter_ns() - begin_ns)))

    def block(is_on: bool) -> tuple[int, float]:
        watching.switch(is_on)
        for _ in range(max(1, steps // 2)):  # a changed class empties the interpreter's caches
            step()
        synchronize()
        begin_ns = perf_counter_ns()
        for _ in range(steps):
            step()
        synchronize()
        wall_ns, queued_ns = perf_counter_ns() - begin_ns, []
        for _ in range(QUEUED):  # an idle device never makes the host wait: this is the host's own time
            begin_ns = perf_counter_ns()
            step()
            queued_ns.append(perf_counter_ns() - begin_ns)
            synchronize()
        return wall_ns, median(queued_ns)

    walls, off_ns, queued_ns, added_us = [], [], [], []
    for pair in range(pairs):
        times = {is_on: block(is_on) for is_on in ((True, False) if pair % 2 else (False, True))}
        (on_wall, on_queued), (off_wall, off_queued) = times[True], times[False]
        walls.append(on_wall / off_wall)
        off_ns.append(off_wall)
        queued_ns.append(off_queued)
        added_us.append((on_queued - off_queued) / 1e3)
    ms = {"off ms": median(off_ns) / steps / 1e6, "queued ms": median(queued_ns) / 1e6}
    return {"wall": walls, "queued us": added_us, **ms, **_stamped()}


def _stamped() -> dict[str, Any]:
    from training_profiler import api

    session = api._process.session
    assert session is not None
    time = session.run.samplers.device
    api.snapshot()
    stats = time.stats()
    assert stats is not None, session.run.guard.disabled
    left_out = sum(stats.unmeasured.values())
    return {"device": stats.name, "stamp us": time._stamp_ns / 1e3, "spans": stats.spans, "left out": left_out}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=PAIRS, help=f"pairs of blocks to compare; {PAIRS} by default")
    parser.add_argument("--only", default="", help="part of the name of the steps to measure, such as 10")
    parser.add_argument("--inside", choices=SIZES, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.inside:
        stdout, sys.stdout = sys.stdout, sys.stderr
        json.dump(measure(SIZES[arguments.inside], arguments.pairs), stdout)
        stdout.flush()
    else:
        run(arguments.pairs, arguments.only)
