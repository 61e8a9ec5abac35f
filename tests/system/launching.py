"""Starts programs plainly and through ``training-profiler run``, with stand-ins for torch and for the profiler."""

import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tests.support.fork_server import ForkedProgram
from tests.support.ports import free_port
from tests.system.scripts import ROOT, TIMEOUT_S, environment, finish, fork_server
from training_profiler.base.switch import launch_environment

BOOTSTRAP = ROOT / "training_profiler" / "bootstrap"
NOTHING = "training_profiler: nothing measured: the program never imported torch\n"
# `-c` instead of `-m training_profiler`: stand-ins may come first on PYTHONPATH.
RUN = f"import sys; sys.path.insert(0, {str(ROOT)!r}); from training_profiler.cli import main; sys.exit(main())"


class Ended(NamedTuple):
    """How a program ended."""

    status: int
    stdout: str
    stderr: str


def through_run(*words: str) -> list[str]:
    """Return the command line of ``training-profiler run`` with ``words``."""
    return [sys.executable, "-c", RUN, "run", *words]


def execute(cwd: Path, command: list[str], profile: str | None = None, pythonpath: str = "", **options: Any) -> Ended:
    """Run ``command`` to its end, with exactly this PYTHONPATH."""
    variables = {"PYTHONPATH": pythonpath, **options.pop("variables", {})}
    done = subprocess.run(
        command,
        cwd=cwd,
        env=environment(profile, **variables),
        text=True,
        timeout=TIMEOUT_S,
        capture_output=True,
        **{"input": "", **options},
    )
    return Ended(done.returncode, done.stdout, done.stderr)


def start_in_fork(
    cwd: Path, words: Sequence[str], variables: Mapping[str, str], is_profiled: bool = True
) -> ForkedProgram:
    """Start a program in a fork of a process that has imported torch, as ``training-profiler run`` does it."""
    launched = launch_environment(str(BOOTSTRAP), True, variables) if is_profiled else variables
    return fork_server().start(words, cwd, launched, is_profiled)


def start_ranks(
    cwd: Path, words: Sequence[str], ranks: int, variables: Mapping[str, str], is_profiled: bool = True
) -> list[ForkedProgram]:
    """Start a program on so many ranks in forks, with the variables that torchrun sets."""
    shared = {
        "WORLD_SIZE": str(ranks),
        "LOCAL_WORLD_SIZE": str(ranks),
        "GROUP_RANK": "0",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
        "GLOO_SOCKET_IFNAME": "lo",
    }
    return [
        start_in_fork(cwd, words, {**variables, **shared, "RANK": rank, "LOCAL_RANK": rank}, is_profiled)
        for rank in map(str, range(ranks))
    ]


def execute_forked(cwd: Path, *words: str, is_profiled: bool = True, **variables: str) -> Ended:
    """Run such a program to its end."""
    ended = finish(start_in_fork(cwd, words, environment(None, **variables), is_profiled), cwd)
    return Ended(ended.status, ended.stdout, ended.stderr)


def stand_ins(cwd: Path, torch: str = "", live: str | None = None) -> str:
    """Write a fake ``torch`` and, if ``live`` is given, ``training_profiler``; return the PYTHONPATH for both."""
    folder = cwd / "stand_ins"
    (folder / "torch").mkdir(parents=True)
    (folder / "torch" / "__init__.py").write_text(torch)
    if live is not None:
        (folder / "training_profiler").mkdir()
        (folder / "training_profiler" / "__init__.py").write_text("")
        (folder / "training_profiler" / "api.py").write_text(live)
    return str(folder)
