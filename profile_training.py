"""Profile a training script, or the rectified flow example, and print the next command.

    python profile_training.py train.py --lr 1e-3        # any training script, unmodified
    python profile_training.py -m package.module
    python profile_training.py                           # the example, about a minute on two CPU cores
    RECTIFIED_FLOW_PROFILE=0 python profile_training.py  # the example without the profiler

With a script this is ``training-profiler run``. Without one all arguments go to the example;
``python profile_training.py --help`` lists them.
"""

import os
import shlex
import shutil
import sys
from pathlib import Path

SWITCH = "RECTIFIED_FLOW_PROFILE"


def names_a_program(words: list[str]) -> bool:
    """Return whether ``words`` begin with a script or a module; else they are options of the example."""
    return bool(words) and (words[0] == "-m" or not words[0].startswith("-"))


def run_program(words: list[str]) -> int:
    """Replace this process by the profiled program; return an exit status only if that fails."""
    given = os.environ.pop(SWITCH, None)  # this process is not profiled, so it need not load the profiler
    from training_profiler.cli import main

    if given is not None:
        os.environ[SWITCH] = given
    return main(["run", *words])


def train_example() -> None:
    """Train the rectified flow, profiled unless the variable disables it, and print the next command."""
    os.environ.setdefault(SWITCH, "1")  # before the import, which reads it
    from examples.rectified_flow.__main__ import main
    from training_profiler import snapshot

    main()
    run_folder = snapshot().run_folder
    if run_folder is None:
        print("Not profiled. To see where the time goes: RECTIFIED_FLOW_PROFILE=1 python profile_training.py")
    elif os.environ.get("RANK", "0") == "0":
        print(f"Run folder: {run_folder}\nNext: {next_command(run_folder)}")


def next_command(run_folder: str) -> str:
    """Return the command that shows the report of ``run_folder`` again, to be typed in the current folder."""
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
    if names_a_program(sys.argv[1:]):
        sys.exit(run_program(sys.argv[1:]))
    train_example()
