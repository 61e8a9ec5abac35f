"""What patches execute in a step of the smallest training: ``python -m benchmarks.patch_instructions [--runs N]``.

Time in short steps changes by half with the load of the machine; these counts do not. First the bytecodes that patches
add, by function. Then, where valgrind is installed, the instructions that they add, and the lines that are missing in
its model of the first caches: medians of some processes each. The interpreter's cache of attributes depends on the
addresses of objects, by up to 3,000 instructions a step, so compare commits in turns.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from types import CodeType, FrameType
from typing import Any, Final

from benchmarks.children import ROOT, environment, result_of
from benchmarks.figures import print_table
from benchmarks.patches import SwitchablePatches
from training_profiler.instrumentation.loop_detection import input_sizes, loader_passes

WARM_UP: Final = 300  # steps, until the interpreter has specialized the code of patches
STEPS: Final = 160  # as many as have ten whose sizes of inputs are read
COUNTED_STEPS: Final = 700  # under valgrind
SLOWER: Final = 50  # times as long as usual valgrind takes for a step, so what is due after some time is due later
RUNS: Final = 3
LEAST: Final = 1.0  # bytecodes a step of a function that is shown
COUNTS: Final = {"instructions": ("Ir",), "lines of code missed": ("I1mr",), "lines of data missed": ("D1mr", "D1mw")}


def run(runs: int = RUNS) -> None:
    """Count and print; takes about 2 minutes for each of ``runs`` with valgrind."""
    result = result_of("benchmarks.patch_instructions", "--bytecodes", is_on=False)
    print(
        f"Bytecodes and calls of Python that patches add to a step, {result['without']:.0f} of which are in it without"
    )
    rows = [[name, f"{calls:.2f}", f"{count:.1f}"] for name, calls, count in result["functions"]]
    print_table(["function", "calls", "bytecodes"], [*rows, ["all", "", f"{result['added']:.1f}"]])
    if shutil.which("valgrind") is None:
        print("valgrind is not installed, so instructions were not counted")
        return
    counted = {is_on: [_counted(is_on) for _ in range(runs)] for is_on in (True, False)}
    rows = []
    for what in COUNTS:
        on, off = ([each[what] / COUNTED_STEPS for each in counted[is_on]] for is_on in (True, False))
        rows.append([what, *(f"{value:.0f}" for value in (median(off), median(on) - median(off), max(on) - min(on)))])
    print(f"A step under valgrind, medians of {runs} processes each")
    print_table(["", "without patches", "added", "range with patches"], rows)


def _training() -> tuple[SwitchablePatches, Callable[[int], None]]:
    import torch
    from torch.utils.data import DataLoader

    from benchmarks.programs.tiny_training import make

    torch.set_num_threads(1)
    model, criterion = make(), torch.nn.MSELoss()
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    data: Any = [(torch.randn(16, 8), torch.randn(16, 1))] * 100_000
    batches = iter(DataLoader(data, batch_size=None))

    def train(steps: int) -> None:
        for _ in range(steps):
            x_BF, y_B1 = next(batches)
            optimizer.zero_grad()
            criterion(model(x_BF), y_B1).backward()
            optimizer.step()

    return SwitchablePatches(), train


def _patch(patches: SwitchablePatches, train: Callable[[int], None]) -> None:
    """Install the patches as they are after the first steps, in which more is looked at."""
    patches.install(patches.names)
    train(40)
    patches.uninstall()
    patches.install(patches.names)


def count_bytecodes() -> dict[str, Any]:
    """Return the bytecodes and calls that patches add to a step, and what it executes without."""
    patches, train = _training()
    train(WARM_UP)
    before = _executed(train)
    _patch(patches, train)
    train(WARM_UP)
    bytecodes, calls = _executed(train)
    bytecodes.subtract(before[0])
    calls.subtract(before[1])
    functions = [
        (_name(code), calls[code] / STEPS, count / STEPS)
        for code, count in bytecodes.most_common()
        if abs(count) >= LEAST * STEPS
    ]
    return {
        "without": sum(before[0].values()) / STEPS,
        "added": sum(bytecodes.values()) / STEPS,
        "functions": functions,
    }


def _executed(train: Callable[[int], None]) -> tuple[Counter[CodeType], Counter[CodeType]]:
    """Return how many bytecodes and calls each function executes in some steps."""
    bytecodes, calls = Counter[CodeType](), Counter[CodeType]()

    def trace(frame: FrameType, event: str, argument: object) -> Any:
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        calls[frame.f_code] += event == "call"
        bytecodes[frame.f_code] += event == "opcode"
        return trace

    sys.settrace(trace)
    train(STEPS)
    sys.settrace(None)
    return bytecodes, calls


def _name(code: CodeType) -> str:
    # Some patches have the file name of the import system, so that warnings skip them.
    return f"{Path(code.co_filename).stem}.{code.co_qualname}".replace("<locals>.", "").replace(
        "<frozen importlib.", ""
    )


def _counted(is_on: bool) -> dict[str, int]:
    """Return what valgrind counts in some steps, with patches or without."""
    with TemporaryDirectory() as folder:
        written = Path(folder) / "counts"
        options = ("--tool=callgrind", "--cache-sim=yes", "--instr-atstart=no", f"--callgrind-out-file={written}")
        command = ("valgrind", *options, sys.executable, "-m", "benchmarks.patch_instructions", "--steps", str(is_on))
        variables = environment(False, folder) | {"PYTHONHASHSEED": "0"}
        subprocess.run(command, env=variables, cwd=ROOT, check=True, capture_output=True)
        lines = dict(line.split(":", 1) for line in written.read_text().splitlines() if line.startswith(("ev", "tot")))
    counts = dict(zip(lines["events"].split(), map(int, lines["totals"].split()), strict=False))
    return {what: sum(counts[event] for event in events) for what, events in COUNTS.items()}


def train_counted(is_on: bool) -> None:
    """Train, and let valgrind count the last steps."""
    for pace, name in ((input_sizes, "APART_NS"), (loader_passes, "MADE_APART_NS")):
        setattr(pace, name, getattr(pace, name) * SLOWER)
    patches, train = _training()
    if is_on:
        _patch(patches, train)
    train(WARM_UP)
    for switch, steps in (("on", COUNTED_STEPS), ("off", 0)):
        subprocess.run(["callgrind_control", "-i", switch, str(os.getpid())], check=True, capture_output=True)
        train(steps)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=RUNS, help="processes with patches, and as many without")
    parser.add_argument("--bytecodes", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--steps", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.steps:
        train_counted(arguments.steps == str(True))
    elif arguments.bytecodes:
        print(json.dumps(count_bytecodes()))
    else:
        run(arguments.runs)
