"""Whether edited programs have the gain that `training-profiler try` has shown on the unedited ones.

    python -m benchmarks.tried_edits                 # takes 1 to 2 minutes a program
    python -m benchmarks.tried_edits module_level

Each program of ``tests/trials/programs/styles`` is tried, and its copy is edited with ``patch``. Then the program and
its edited copy run without the profiler, in turns of two seconds: the processes of the one are stopped while the other
runs, so both have the machine as it is. The times between the losses that they print are compared.
"""

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.children import ROOT
from benchmarks.figures import print_table
from training_profiler.trials.statistics import Effect, effect_of

STYLES = ROOT / "tests" / "trials" / "programs" / "styles"
CHANGES = {
    "loader_in_function": "num_workers=2",
    "module_level": "num_workers=2",
    "argparse_default": "num_workers=2",
    "lines_and_comments": "num_workers=2",
    "optimizer_in_class": "fused",
    "keyword_arguments": "num_workers=2",
}
STEPS, MANY_STEPS = 1_000, 100_000
PAIRS, TURN_S, SKIPPED_S = 15, 2.0, 0.5  # of a turn, its begin is not measured
TRY = [sys.executable, "-m", "training_profiler", "try"]


def call(words: list[str], cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run a command of the profiler."""
    variables = os.environ | {"PYTHONPATH": str(ROOT), "COLUMNS": "1000"}
    return subprocess.run(words, cwd=cwd, env=variables, capture_output=True, text=True, check=True)


class Training:
    """A program that prints a line for each step, and runs only in its turns."""

    def __init__(self, script: Path) -> None:
        self._output = script.with_suffix(".out")  # a pipe would wake its reader at each step, which costs time
        with open(self._output, "wb") as output:
            self._process = subprocess.Popen(
                [sys.executable, script.name, str(MANY_STEPS)],
                cwd=script.parent,
                stdout=output,
                start_new_session=True,  # so that its workers are stopped with it, at once
            )

    def _steps(self) -> int:
        return self._output.read_bytes().count(b"\n")

    def begin(self) -> None:
        """Wait for the first steps, and stop it."""
        while self._steps() < 10:
            time.sleep(0.1)
        os.killpg(self._process.pid, signal.SIGSTOP)

    def turn(self) -> float:
        """Return the mean seconds of a step in a turn."""
        os.killpg(self._process.pid, signal.SIGCONT)
        time.sleep(SKIPPED_S)
        begin_s, before = time.perf_counter(), self._steps()
        time.sleep(TURN_S - SKIPPED_S)
        seconds, steps = time.perf_counter() - begin_s, self._steps() - before
        os.killpg(self._process.pid, signal.SIGSTOP)
        return seconds / steps

    def end(self) -> None:
        """Kill it with its workers."""
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()


def effect_of_edit(edited: Path, unedited: Path) -> Effect:
    """Return what an edit does to the time of a step."""
    trainings = [Training(edited), Training(unedited)]
    try:
        for training in trainings:
            training.begin()
        turns = [[training.turn() for training in trainings] for _ in range(PAIRS)]
    finally:
        for training in trainings:
            training.end()
    found = effect_of(*zip(*turns, strict=True))
    assert found is not None
    return found


def shown(effect: Effect) -> str:
    """Return the effect on a typical block or turn, and on all together, which differ on a busy machine."""
    return f"{effect}, all: {effect.total:+.1%}"


def measure(name: str, folder: Path) -> list[str]:
    """Return the row of a program."""
    change, script = CHANGES[name], folder / "code" / f"{name}.py"
    shutil.copytree(STYLES, script.parent)
    tried = json.loads(call([*TRY, "--json", "--only", change, script.name, str(STEPS)], script.parent).stdout)
    (row,) = tried["rows"]
    effect = shown(Effect(**row["effect"])) if row["effect"] else row["reason"]
    edit = call([*TRY, "--show-diff", tried["run_folder"], "--only", change], script.parent)
    if not edit.stdout:
        return [name, change, effect, row["verdict"], edit.stderr.partition(": ")[2].strip()]
    shutil.copytree(script.parent, folder / "edited", ignore=shutil.ignore_patterns("runs"))
    patch = ["patch", "-p1"]
    subprocess.run(patch, cwd=folder / "edited", input=edit.stdout, text=True, check=True, capture_output=True)
    return [name, change, effect, row["verdict"], shown(effect_of_edit(folder / "edited" / script.name, script))]


def main() -> None:
    """Measure all programs, or those named."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*")
    rows = []
    for name in parser.parse_args().names or CHANGES:
        with tempfile.TemporaryDirectory() as folder:
            rows.append(measure(name, Path(folder)))
            print(*rows[-1], sep=" | ", flush=True)
    print_table(["program", "change", "shown by a trial", "verdict", "edited"], rows)


if __name__ == "__main__":
    main()
