"""Train the rectified flow under the profiler, and say where to read on.

    python profile_training.py                           # profiled, about a minute on two CPU cores
    RECTIFIED_FLOW_PROFILE=0 python profile_training.py  # the same training, plain

All arguments go to the training; ``python profile_training.py --help`` lists them.
"""

import os
import shlex
import shutil
import sys
from pathlib import Path

# Before the import: the profiler decides then whether it is there at all.
os.environ.setdefault("RECTIFIED_FLOW_PROFILE", "1")

from examples.rectified_flow.__main__ import main
from training_profiler import snapshot


def next_command(run_folder: str) -> str:
    """Return the command that shows the report of ``run_folder`` again, as it can be typed here."""
    folder = Path(run_folder)
    if folder.is_relative_to(Path.cwd()):
        folder = folder.relative_to(Path.cwd())
    if shutil.which("training-profiler"):
        return shlex.join(["training-profiler", "report", str(folder)])
    python = Path(sys.executable)
    if python.is_relative_to(Path.cwd()):
        python = python.relative_to(Path.cwd())
    return shlex.join([str(python), "-m", "training_profiler", "report", str(folder)])


if __name__ == "__main__":
    main()
    run_folder = snapshot().run_folder
    if run_folder is None:
        print("Not profiled. To see where the time goes: RECTIFIED_FLOW_PROFILE=1 python profile_training.py")
    elif os.environ.get("RANK", "0") == "0":
        print(f"Run folder: {run_folder}\nNext: {next_command(run_folder)}")
