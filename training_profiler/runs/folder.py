"""A run's folder: its name, and what meta.json says about the run."""

import json
import os
import platform
import re
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
OWN_NAME: Final = "-rank{rank}"  # ends the name of a folder of a rank that heard of no other
_OWN_NAME: Final = re.compile(r"\d{8}-\d{6}-rank\d+(-\d+)?")
_PLAIN_NAME: Final = re.compile(r"[A-Za-z0-9_.-]{1,200}")
_JOURNAL_NAME: Final = re.compile(r"rank(\d{1,7})(?:-attempt(\d{1,7}))?(?:-\d+)?\.jsonl")
_PACKAGES: Final = ("training-profiler", "torch", "numpy")


def journal_name(rank: int, attempt: int = 0, number: int = 1) -> str:
    """Return the file name of a rank's journal: ``rank3.jsonl``, ``rank3-attempt1.jsonl``, ``rank3-2.jsonl``.

    Args:
        rank: whose it is.
        attempt: how often the launcher had started the training anew before.
        number: 1, or more where another process has written one of that name.
    """
    of_attempt = f"-attempt{attempt}" if attempt else ""
    return f"rank{rank}{of_attempt}{f'-{number}' if number > 1 else ''}.jsonl"


def read_journal_name(name: str) -> tuple[int, int] | None:
    """Return rank and attempt of a journal's file name; None where it is not of that form."""
    match = _JOURNAL_NAME.fullmatch(name)
    return None if match is None else (int(match[1]), int(match[2] or 0))


def is_plain_name(name: object) -> bool:
    """Return whether ``name``, which another process said, names a folder beside ours and nothing else."""
    return isinstance(name, str) and bool(_PLAIN_NAME.fullmatch(name)) and name not in (".", "..")


def is_own_name(name: str) -> bool:
    """Return whether a folder is called like that of a rank that heard of no other."""
    return bool(_OWN_NAME.fullmatch(name))


def make_run_folder(parent: str | Path, ending: str = "") -> Path:
    """Make and return a new folder named after the time, such as ``runs/20261121-142530``.

    Raises:
        OSError: it cannot be made.
    """
    stem = time.strftime("%Y%m%d-%H%M%S") + ending
    for number in range(1, 10_000):
        folder = Path(parent) / (stem if number == 1 else f"{stem}-{number}")
        if make_folder(folder):
            return folder.absolute()
    raise FileExistsError(f"{parent} holds 9999 runs that began in this second")


def make_folder(folder: Path) -> bool:
    """Make ``folder``; return whether it was not there.

    Raises:
        OSError: it cannot be made.
    """
    try:
        folder.mkdir(parents=True)
    except FileExistsError:
        if not folder.is_dir():
            raise
        return False
    return True


def describe_run(settings: Settings) -> dict[str, Any]:
    """Return what meta.json holds: time, host, command line without secrets, versions, settings, git commit."""
    return {**describe_process(settings), "git": _git()}


def describe_process(settings: Settings) -> dict[str, Any]:
    """Return the same without the commit, which takes other processes to find out."""
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
