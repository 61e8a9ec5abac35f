"""Cost of profiling an unmodified training: on against off, and beside other profilers.

``python -m benchmarks.unmodified_training [--rounds N] [--only WORD]``

Batch sizes are chosen so that a step takes as long as its row says on this machine. A round starts each program once,
and the programs alternate every quarter of a second. A pair is a program's block and the nearest block of the bare
training; ``bare, again`` shows how far two equal trainings differ. Rare work, such as a final report, only enters the
sums. To resolve a few per mille, use ``switched``.
"""

import argparse
import importlib.util
import json
import os
import socket
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from itertools import chain, repeat
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import monotonic, perf_counter_ns
from typing import Final

from benchmarks.children import ROOT, environment, result_of
from benchmarks.figures import Figure, median_cells, print_figures, print_table
from benchmarks.turns import Contender, TrainingTime, take_turns

PROGRAMS: Final = ROOT / "benchmarks" / "programs"
TINY_TARGET_US: Final = 15
CLOSE: Final = 0.07  # relative, of a step's time to the wanted one
MOST_S: Final = 450.0  # no round begins that would probably end later
BARE, AGAIN, OURS = "bare", "bare, again", "training-profiler run"
TRACEML: Final = "traceml run"  # for a hand-written loop, where it finds no steps
EDITED: Final = "traceml run, trace_step() in the script"
SIMPLE: Final = "Trainer(profiler='simple')"


@dataclass(frozen=True, slots=True)
class Kind:
    """A training to be profiled, in blocks of ``block_steps``."""

    what: str
    program: str
    arguments: tuple[str, ...]
    step_ms: float
    block_steps: int
    run_s: float  # of a program's steps in a round
    target: float | None = None  # for the ratio of wall times
    others: tuple[str, ...] = ()

    def contenders(self, folder: Path, batch: int) -> dict[str, Contender]:
        """Return the programs that alternate."""
        arguments = (*self.arguments, str(batch), str(self.block_steps))
        script = str(PROGRAMS / self.program)
        bare = Contender([sys.executable, script, *arguments], environment(is_on=False, folder=""))
        profiled = environment(is_on=True, folder=str(folder / "runs"))
        made = {
            BARE: bare,
            OURS: Contender([sys.executable, "-m", "training_profiler", "run", script, *arguments], profiled),
        }
        for other in self.others:
            made[other] = _other(other, script, arguments)
        return made | {AGAIN: bare}


KINDS: Final = (
    Kind("loop, 50 ms", "plain_training.py", ("50 ms",), 50, 5, 9.0, 1.005, (TRACEML, EDITED)),
    Kind("loop, 5 ms", "plain_training.py", ("5 ms",), 5, 50, 6.0, 1.02, (TRACEML, EDITED)),
    Kind("Lightning, 50 ms", "lightning_training.py", ("50 ms",), 50, 5, 5.0, None, (SIMPLE, TRACEML)),
    Kind("Lightning, 5 ms", "lightning_training.py", ("5 ms",), 5, 50, 5.0, None, (SIMPLE, TRACEML)),
    Kind("loop, 0.25 ms", "tiny_training.py", (), 0.25, 500, 8.0),
)


def _other(name: str, script: str, arguments: tuple[str, ...]) -> Contender:
    variables = environment(is_on=False, folder="")
    if name == SIMPLE:
        return Contender([sys.executable, script, *arguments, "simple"], variables)
    if name == EDITED:
        script = str(PROGRAMS / "traceml_training.py")
    folder = str(Path(sys.executable).parent)
    ports = ["--aggregator-port", str(_free_port()), "--master-port", str(_free_port())]
    command = [f"{folder}/traceml", "run", script, *ports, "--args", *arguments]
    # It starts `torchrun`, which has to be the one of this environment.
    return Contender(command, variables | {"PATH": os.pathsep.join([folder, os.environ.get("PATH", "")])})


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def batches() -> dict[str, int]:
    """Return for each length of a step in ms the batch with which it takes that long here, as strings for JSON."""
    import torch

    torch.set_num_threads(1)  # as the programs do
    steps = {kind.step_ms: kind.arguments for kind in KINDS}
    return {str(ms): _batch_for(ms, *arguments) for ms, arguments in steps.items()}


def _batch_for(ms: float, *size: str) -> int:
    batch = 16
    for _ in range(4):
        step = step_of(batch, *size)
        took_ms = median(_took_ms(step) for _ in range(40))
        if abs(took_ms / ms - 1) < CLOSE:
            break
        batch = max(1, round(batch * ms / took_ms))
    return batch


def step_of(batch: int, size: str = "") -> Callable[[], None]:
    """Return a step of the training that a program of this size makes, its batch from a loader where it has one."""
    import torch

    from benchmarks.programs import plain_training, tiny_training

    if not size:
        tiny, loss = tiny_training.make(), torch.nn.MSELoss()
        x_BF, y_B1 = torch.randn(batch, 8), torch.randn(batch, 1)
        sgd = torch.optim.SGD(tiny.parameters(), 0.01)

        def tiny_step() -> None:
            sgd.zero_grad()
            loss(tiny(x_BF), y_B1).backward()
            sgd.step()

        return tiny_step
    model, loader = plain_training.make(size, batch)
    criterion = torch.nn.CrossEntropyLoss()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4)
    fetched = chain.from_iterable(repeat(loader))

    def step() -> None:
        words, labels = next(fetched)
        optimizer.zero_grad()
        criterion(model(words), labels).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

    return step


def _took_ms(work: Callable[[], None]) -> float:
    begin_ns = perf_counter_ns()
    work()
    return (perf_counter_ns() - begin_ns) / 1e6


Times = Mapping[str, TrainingTime]


def run(rounds: int = 3, only: str = "") -> list[Figure]:
    """Measure, print and return the ratios and what a tiny step costs; takes at most about 8 minutes."""
    kinds = [kind for kind in _kinds() if only in kind.what]
    taken: dict[str, list[Times]] = {kind.what: [] for kind in kinds}
    batches = result_of("benchmarks.unmodified_training", "--batches", is_on=False)
    begin_s = monotonic()
    with TemporaryDirectory() as temporary:
        for number in range(rounds):
            if number and (monotonic() - begin_s) * (number + 1) / number > MOST_S:
                print(f"stopped after {number} rounds: the machine is too slow for more in {MOST_S:.0f} s\n")
                break
            for index, kind in enumerate(kinds):
                folder = Path(temporary) / f"{number}-{index}"
                try:
                    taken[kind.what].append(
                        take_turns(kind.contenders(folder, batches[str(kind.step_ms)]), kind.run_s, folder)
                    )
                except RuntimeError as error:
                    print(f"{kind.what}: not measured in round {number + 1}: {error}\n")
    stats = [figure for kind in kinds for figure in _figures(kind, taken[kind.what])]
    print_figures(stats)
    return stats


def _kinds() -> list[Kind]:
    """Return what can be measured with the packages that are installed."""
    needed = {SIMPLE: "lightning", TRACEML: "traceml_ai", EDITED: "traceml_ai"}
    missing = {name for name in needed.values() if importlib.util.find_spec(name) is None}
    for name in missing:
        print(f"{name} is not installed and was left out\n")
    kinds = []
    for kind in KINDS:
        if "lightning" not in missing or "lightning" not in kind.program:
            others = tuple(other for other in kind.others if needed[other] not in missing)
            kinds.append(replace(kind, others=others))
    return kinds


def _figures(kind: Kind, rounds: list[Times]) -> list[Figure]:
    """Print what each program took, and return ours against the targets and the others."""
    if not rounds:
        return [Figure(f"{kind.what}: not measured", None, kind.target or TINY_TARGET_US)]
    walls = {name: _pairs(rounds, name, "wall_ns") for name in rounds[0]}
    cpus = {name: _pairs(rounds, name, "cpu_ns") for name in rounds[0]}
    bare_us = {name: median(_steps_us(kind, rounds, BARE, name)) for name in ("wall_ns", "cpu_ns")}
    print(
        f"{kind.what}, {bare_us['wall_ns'] / 1e3:.2f} ms as measured: time over that of the bare training, "
        f"median of {len(walls[OURS])} pairs of blocks and its standard error"
    )
    rows = []
    for name in rounds[0]:
        added_us = bare_us["cpu_ns"] * (median(cpus[name]) - 1)
        other_s = median(times[name].other_cpu_s - times[BARE].other_cpu_s for times in rounds)
        sums = [_sum_ratio(rounds, name, kind_ns) for kind_ns in ("wall_ns", "cpu_ns")]
        row = [
            name,
            *median_cells(walls[name]),
            sums[0],
            *median_cells(cpus[name]),
            sums[1],
            f"{added_us:+.1f}",
            f"{other_s:+.1f}",
        ]
        rows.append(row)
    headers = ["profiled by", "wall", "+-", "of the sums", "CPU", "+-", "of the sums", "CPU us a step", "CPU s beside"]
    print_table(headers, rows)
    if kind.target is None and not kind.others:
        cost_us = bare_us["cpu_ns"] * (median(cpus[OURS]) - 1)
        return [Figure(f"{kind.what}: CPU added to a step, reports and all", cost_us, TINY_TARGET_US, "us", 1)]
    wall = median(walls[OURS])
    stats = [] if kind.target is None else [Figure(f"{kind.what}, wall over bare", wall, kind.target, "", 4)]
    beside = f"{kind.what}, wall over bare, beside"
    return stats + [Figure(f"{beside} {other}", wall, median(walls[other]), "", 4) for other in kind.others]


def _pairs(rounds: list[Times], name: str, kind_ns: str) -> list[float]:
    """Return the ratios of neighbouring blocks, of the program over the bare training; the first block warms up."""
    return [
        own / bare
        for times in rounds
        for own, bare in zip(getattr(times[name], kind_ns)[1:], getattr(times[BARE], kind_ns)[1:], strict=True)
    ]


def _steps_us(kind: Kind, rounds: list[Times], name: str, kind_ns: str) -> list[float]:
    return [ns / 1e3 / kind.block_steps for times in rounds for ns in getattr(times[name], kind_ns)[1:]]


def _sum_ratio(rounds: list[Times], name: str, kind_ns: str) -> str:
    own, bare = (sum(sum(getattr(times[one], kind_ns)[1:]) for times in rounds) for one in (name, BARE))
    return f"{own / bare:.4f}"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", default="", help="part of the name of the trainings to measure, such as Lightning")
    parser.add_argument("--batches", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.batches:
        json.dump(batches(), sys.stdout)
    else:
        run(arguments.rounds, arguments.only)
