"""Starts the programs of this folder, which print their results as JSON in the last line."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
SWITCH = "RECTIFIED_FLOW_PROFILE"
TIMEOUT_S = 240


def run(
    cwd: Path, program: str, *arguments: str, profile: str = "1", is_profiled: bool = False, **variables: str
) -> Any:
    """Return the results of the program; the report of the profiler goes to stderr and is shown with the test."""
    command = [sys.executable, str(HERE / "programs" / f"{program}.py"), *arguments]
    if is_profiled:
        command = [sys.executable, "-m", "training_profiler", "run", *command[1:]]
    kept = {name: value for name, value in os.environ.items() if not name.startswith(SWITCH)}
    settings = {f"{SWITCH}_{name.upper()}": value for name, value in variables.items()}
    done = subprocess.run(
        command,
        cwd=cwd,
        env={
            **kept,
            "PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]),
            "CUBLAS_WORKSPACE_CONFIG": ":4096:8",  # otherwise products differ between runs
            SWITCH: profile,
            f"{SWITCH}_STREAM": "stderr",
            **settings,
        },
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
    )
    print(done.stderr)
    assert done.returncode == 0, done.stderr[-4000:]
    assert "switched off" not in done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def report_of(cwd: Path) -> dict[str, Any]:
    """Return the report of the one run that wrote into ``cwd``."""
    (path,) = cwd.glob("runs/*/report.json")
    return dict(json.loads(path.read_text()))
