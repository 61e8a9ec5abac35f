"""Isolates one trial.

    isolation = prepare(scratch)
    process = subprocess.Popen(isolation.command(["python", "train.py"]), env=isolation.environ(environment))
    ...
    report = isolation.finish()

What the trial writes is gone after ``finish``, except what it writes into ``isolation.results``, which the caller reads
before, and into the folders of ``writable``.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from training_profiler.errors import ProfilerError
from training_profiler.trials.isolation import processes, written
from training_profiler.trials.isolation.plan import NAMESPACES, SHARED_PROCESSES, TRIAL, Plan

LAUNCHER: Final = Path(__file__).with_name("launcher.py")
PROBE_TIMEOUT_S: Final = 60.0
SHARE_OF_FREE_SPACE: Final = 0.25  # for one file; a checkpoint and what it replaces are there together


class FinishReport(NamedTuple):
    """What a trial did, and what was undone."""

    changes: written.Changes
    """The files that it wrote and removed, none of which the user has."""
    ended: tuple[str, ...]
    """Command lines of processes that the program left behind, which were ended."""
    left: tuple[str, ...]
    """What could not be undone: processes and files that are still there."""


class IsolationError(ProfilerError):
    """No way of isolating a trial works here."""


class Isolation:
    """One trial's isolation."""

    def __init__(self, plan: Plan, promise: str) -> None:
        self._plan = plan
        self.promise = promise
        """What holds and what does not, for people."""
        self.results = Path(plan.scratch, "results")
        """A folder for what the trial hands to the caller."""

    def command(self, words: Sequence[str]) -> list[str]:
        """Return the command that starts the program ``words`` in the current folder.

        Its exit status is the program's, 128 + n after signal n, and 125 if the isolation fails. SIGTERM is passed on.
        """
        return [sys.executable, "-E", "-s", str(LAUNCHER), str(self._plan.folder), *words]

    def environ(self, environ: Mapping[str, str]) -> dict[str, str]:
        """Return the environment of the command."""
        return {**environ, TRIAL: str(self._plan.folder)}

    def finish(self) -> FinishReport:
        """End every process of the trial and remove the scratch folder."""
        ended, alive = processes.end_trial(self._plan.folder)
        changes = written.load(self._plan)
        ended = [*self._plan.read_ended(), *ended]
        _remove(Path(self._plan.scratch))
        left = [self._plan.scratch] if os.path.lexists(self._plan.scratch) else []
        return FinishReport(changes, tuple(ended), (*alive, *left))


def prepare(scratch: Path, writable: Sequence[Path] = ()) -> Isolation:
    """Return the isolation of a trial, by the strongest way that works here.

    Args:
        scratch: a folder for what the trial writes; it is made, and removed by ``finish``.
        writable: folders that the trial may write to, such as a cache that the next trial uses as well.

    Raises:
        IsolationError: no way works.
    """
    scratch = scratch.resolve()
    for way, in_memory in ((NAMESPACES, False), (NAMESPACES, True), (SHARED_PROCESSES, False)):
        plan = _plan(way, scratch, writable, in_memory)
        if _works(plan):
            return Isolation(plan, _promise(plan))
    raise IsolationError("a trial cannot be kept apart here: namespaces are refused")


def _plan(way: str, scratch: Path, writable: Sequence[Path], in_memory: bool) -> Plan:
    results = scratch / "results"
    results.mkdir(parents=True, exist_ok=True)
    folders = (str(results), *(str(folder.resolve()) for folder in writable))
    most = int(shutil.disk_usage(scratch).free * SHARE_OF_FREE_SPACE)
    used = (str(Path.cwd()), str(Path.home().resolve()), tempfile.gettempdir(), str(scratch))
    plan = Plan(way, str(scratch), used, folders, in_memory, most)
    plan.layers.mkdir(exist_ok=True)
    plan.save()
    return plan


def _works(plan: Plan) -> bool:
    """Return whether a program that writes a file leaves it as it was."""
    isolation = Isolation(plan, "")
    probe = plan.folder / "probe"
    probe.write_text("as it was")
    # The rest runs only where the first file proves that nothing is written for real.
    script = 'echo changed > "$1" && test "$(cat "$1")" = changed && echo changed'
    try:
        process = subprocess.run(
            isolation.command(["/bin/sh", "-c", script, "sh", str(probe)]),
            env=isolation.environ({"PATH": os.defpath}),
            capture_output=True,
            timeout=PROBE_TIMEOUT_S,
            check=False,
        )
        return process.returncode == 0 and probe.read_text() == "as it was"
    except subprocess.TimeoutExpired:
        return False
    finally:
        _remove(plan.layers)
        _remove(plan.folder)
        plan.layers.mkdir()
        plan.save()


def _promise(plan: Plan) -> str:
    return f"{plan.way}: no file changes, none stays, no process lives on; the network is as usual"


def _remove(folder: Path) -> None:
    # An overlay leaves a folder that its owner may not read.
    for inner, names, _ in os.walk(folder):
        for name in names:
            if not os.path.islink(os.path.join(inner, name)):
                os.chmod(os.path.join(inner, name), 0o700)
    shutil.rmtree(folder, ignore_errors=True)
