"""A run's folder: its name, and what meta.json says about the run."""

import json
import os
import platform
import shlex
import shutil
import socket
import subprocess
import sys
import time
from dataclasses import asdict
from importlib import metadata
from pathlib import Path
from typing import Any, Final

from training_profiler.runs.secrets import masked
from training_profiler.settings import Settings, launch_id

META: Final = "meta.json"
REPORT_TEXT: Final = "report.txt"
REPORT_DATA: Final = "report.json"
_PACKAGES: Final = ("training-profiler", "torch", "numpy")


def journal_name(rank: int) -> str:
    """Return the file name of a rank's journal."""
    return f"rank{rank}.jsonl"


def make_run_folder(parent: str) -> Path:
    """Make and return a new folder named after the time, such as ``runs/20261121-142530``.

    Raises:
        OSError: it cannot be made.
    """
    stem = time.strftime("%Y%m%d-%H%M%S")
    for number in range(1, 10_000):
        folder = Path(parent) / (stem if number == 1 else f"{stem}-{number}")
        try:
            folder.mkdir(parents=True)
        except FileExistsError:
            if not folder.is_dir():
                raise
            continue
        return folder.absolute()
    raise FileExistsError(f"{parent} holds 9999 runs that began in this second")


def describe_run(settings: Settings) -> dict[str, Any]:
    """Return what meta.json holds: time, host, command line without secrets, versions, settings, git commit."""
    return {
        "began": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "launch": launch_id(),
        "command": shlex.join(masked([Path(sys.executable).name, *_arguments()])),
        "folder": os.getcwd(),
        "python": platform.python_version(),
        "platform": "-".join([platform.system(), platform.release(), platform.machine()]),  # without a subprocess
        "cpus": os.cpu_count(),
        "versions": {name: _version(name) for name in _PACKAGES},
        "settings": asdict(settings),
        "git": _git(),
    }


def _arguments() -> list[str]:
    # orig_argv tells `-m package` from a file; what stands after the interpreter is all that is wanted.
    return list(sys.orig_argv[1:] or sys.argv)


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:  # run from a source tree, or not there at all
        module = sys.modules.get(package.replace("-", "_"))
        return getattr(module, "__version__", None)


def _git() -> dict[str, Any] | None:
    """Return commit and state of the work tree the script lies in; None outside of one, or without git."""
    script = Path(sys.argv[0] if sys.argv and sys.argv[0] else ".").absolute()
    where = script.parent if script.is_file() else Path.cwd()
    # By its path: to look for a program itself subprocess touches the filters of warnings, after which Python shows
    # warnings again that it has shown once already.
    git = shutil.which("git")
    if git is None:
        return None

    def ask(*words: str) -> str | None:
        command = [git, "--no-optional-locks", "-C", str(where), *words]
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=1, check=True, stdin=subprocess.DEVNULL
            )
        except (OSError, subprocess.SubprocessError):
            return None
        return done.stdout.strip()

    commit = ask("rev-parse", "HEAD")
    if commit is None:
        return None
    changes = ask("status", "--porcelain", "--untracked-files=no")  # may take too long in a large tree
    return {"commit": commit, "has_changes": None if changes is None else bool(changes)}


def write_json(path: Path, data: Any) -> None:
    """Write ``data`` to ``path`` in one piece: a reader finds the old file or the new one."""
    draft = path.with_name(path.name + ".part")
    draft.write_text(json.dumps(data, indent=1, allow_nan=False) + "\n", encoding="utf-8")
    draft.replace(path)
