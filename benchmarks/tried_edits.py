"""Whether edited programs have the gain that `training-profiler try` has shown on the unedited ones.

    python -m benchmarks.tried_edits                 # takes 1 to 2 minutes a program
    python -m benchmarks.tried_edits module_level

Each program of ``tests/trials/programs/styles`` is tried, and its copy is edited with ``patch``. Then the program and
its edited copy run in turns without the profiler, and the times between the losses that they print are compared.
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.children import ROOT
from benchmarks.figures import print_table

STYLES = ROOT / "tests" / "trials" / "programs" / "styles"
CHANGES = {
    "loader_in_function": "num_workers=2",
    "module_level": "num_workers=2",
    "argparse_default": "num_workers=2",
    "lines_and_comments": "num_workers=2",
    "optimizer_in_class": "fused",
    "keyword_arguments": "num_workers=2",
}
STEPS, SKIPPED, PAIRS = 120, 10, 6
TRY = [sys.executable, "-m", "training_profiler", "try"]


def call(words: list[str], cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run a command of the profiler."""
    variables = os.environ | {"PYTHONPATH": str(ROOT), "COLUMNS": "1000"}
    return subprocess.run(words, cwd=cwd, env=variables, capture_output=True, text=True, check=True)


def step_s(script: Path) -> float:
    """Return the mean time between the losses that a program prints."""
    process = subprocess.Popen(
        [sys.executable, script.name, str(STEPS)], cwd=script.parent, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    times = [time.perf_counter() for line in process.stdout if line.startswith("loss")]
    process.wait()
    return (times[-1] - times[SKIPPED]) / (len(times) - 1 - SKIPPED)


def measure(name: str, folder: Path) -> list[str]:
    """Return the row of a program."""
    change, script = CHANGES[name], folder / "code" / f"{name}.py"
    shutil.copytree(STYLES, script.parent)
    tried = json.loads(call([*TRY, "--json", "--only", change, script.name, str(STEPS)], script.parent).stdout)
    (row,) = tried["rows"]
    effect = "{relative:+.1%} ({low:+.1%} .. {high:+.1%})".format(**row["effect"])
    edit = call([*TRY, "--show-diff", tried["run_folder"], "--only", change], script.parent)
    if not edit.stdout:
        return [name, change, effect, row["verdict"], edit.stderr.partition(": ")[2].strip()]
    shutil.copytree(script.parent, folder / "edited", ignore=shutil.ignore_patterns("runs"))
    patch = ["patch", "-p1"]
    subprocess.run(patch, cwd=folder / "edited", input=edit.stdout, text=True, check=True, capture_output=True)
    pairs = [(step_s(folder / "edited" / script.name), step_s(script)) for _ in range(PAIRS)]
    ratios = sorted(edited / unedited - 1 for edited, unedited in pairs)
    true = f"{statistics.median(ratios):+.1%} ({ratios[0]:+.1%} .. {ratios[-1]:+.1%})"
    return [name, change, effect, row["verdict"], true]


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
