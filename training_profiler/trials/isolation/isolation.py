"""Isolates one trial.

    isolation = prepare(scratch)
    process = subprocess.Popen(isolation.command(["python", "train.py"]), env=isolation.environ(environment))
    ...
    left = isolation.finish()

What the trial writes is gone after ``finish``; the caller reads ``isolation.results`` before.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from training_profiler.base.errors import ProfilerError
from training_profiler.tables.trackers import WANDB
from training_profiler.trials.isolation import linux, processes
from training_profiler.trials.isolation.plan import (
    FOLDER,
    GUARDED,
    SHARED_MEMORY,
    TRIAL,
    UNGUARDED,
    WAYS,
    Plan,
    load_plan,
)
from training_profiler.trials.isolation.promise import offline, promise, trackers_of

LAUNCHER: Final = Path(__file__).with_name("launcher.py")
STARTUP: Final = Path(__file__).with_name("startup")
CACHE: Final = "cache"  # in the scratch folder
MEMORY_FILES: Final = Path("/dev/shm")
PROBE_TIMEOUT_S: Final = 60.0
SHARE_OF_FREE_SPACE: Final = 0.25  # for one file; a checkpoint and what it replaces are there together
MOST_TEMPORARY_CHARACTERS: Final = 50  # Linux allows 107 in the name of a socket, and loader workers make some


class IsolationError(ProfilerError):
    """No way of isolating a trial works here."""


class Isolation:
    """One trial's isolation."""

    def __init__(self, plan: Plan, promise: str) -> None:
        self._plan = plan
        self.way = plan.way
        """One of ``plan.WAYS``."""
        self.promise = promise
        """What holds and what does not, for people: a few lines."""
        self.results = plan.results
        """A folder for what the trial hands to the caller."""

    def command(self, words: Sequence[str]) -> list[str]:
        """Return the command that starts the program ``words`` in the current folder.

        Its exit status is the program's, 128 + n after signal n, and 125 if the isolation fails. SIGTERM is passed on.
        """
        # Neither the variables nor the start-up files of the trial are for the launcher.
        return [sys.executable, "-E", "-s", str(LAUNCHER), str(self._plan.folder), *words]

    def environ(self, environ: Mapping[str, str]) -> dict[str, str]:
        """Return the environment of the command."""
        before = [entry for entry in environ.get("PYTHONPATH", "").split(os.pathsep) if entry != str(STARTUP)]
        composed = {
            **environ,
            **offline(environ),
            TRIAL: str(self._plan.folder),
            # An empty entry would mean the current folder, so an empty variable must not become one.
            "PYTHONPATH": os.pathsep.join([str(STARTUP), *(before if before != [""] else [])]),
        }
        if self._plan.is_copy:
            cache = Path(self._plan.scratch, CACHE)
            composed |= {
                "PYTHONDONTWRITEBYTECODE": "1",
                "TMPDIR": self._plan.temporary,
                "WANDB_DIR": str(cache / WANDB.name),
                "WANDB_CACHE_DIR": str(cache / "wandb-cache"),
                "WANDB_DATA_DIR": str(cache / "wandb-data"),
                "HF_MODULES_CACHE": str(cache / "hf-modules"),
            }
            for name in ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "TORCH_EXTENSIONS_DIR"):  # of compilers
                composed[name] = str(cache / name.lower())
        return composed

    def name_originals(self, folder: Path) -> None:
        """Let the JSON files in ``folder``, which the trial wrote, name the user's files instead of their copies."""
        for path in folder.rglob("*.json*") if self._plan.is_copy else ():
            path.write_bytes(path.read_bytes().replace(os.fsencode(self._plan.layers), b""))

    def finish(self) -> tuple[str, ...]:
        """End every process of the trial and remove what it wrote; return the processes and files that are left."""
        alive = processes.end_trial(self._plan.folder)
        for path in self._shared_memory():
            path.unlink(missing_ok=True)
        folders = [folder for folder in (self._plan.scratch, self._plan.temporary) if folder]
        for folder in folders:
            _remove(Path(folder))
        return (*alive, *filter(os.path.lexists, folders))

    def _shared_memory(self) -> Iterator[Path]:
        """Yield the files of shared memory that processes of the trial have left behind."""
        record = self._plan.folder / SHARED_MEMORY
        if record.exists() and MEMORY_FILES.is_dir():
            for name in record.read_text(encoding="utf-8", errors="surrogateescape").splitlines():
                yield from MEMORY_FILES.glob(name)


def prepare(scratch: Path, script: Path | None = None, ways: Sequence[str] = WAYS) -> Isolation:
    """Return the isolation of a trial, by the strongest way that works here.

    Args:
        scratch: a folder for what the trial writes; it is made, and removed by ``finish``.
        script: the program, to name the trackers that it imports.
        ways: the ways to try, the strongest first.

    Raises:
        IsolationError: none works.
    """
    scratch = scratch.resolve()
    for way in ways:
        for in_memory in (False,) if way in (GUARDED, UNGUARDED) else (False, True):
            plan = _plan(way, scratch, in_memory)
            if _works(plan):
                found = None if script is None else trackers_of(script)
                return Isolation(plan, promise(plan, found, shutil.disk_usage(scratch).free))
    _remove(scratch)
    raise IsolationError(
        "a trial cannot be kept apart from your files here: namespaces and Landlock were refused; with --allow-writes, "
        "it runs in a copy of this folder, and what it writes elsewhere stays"
    )


def finish_trial(scratch: Path) -> None:
    """End and remove what is left of a trial whose session was killed, if there is one in this scratch folder."""
    try:
        plan = load_plan(str(scratch / FOLDER))
    except (OSError, ValueError, TypeError, KeyError):
        return
    if plan.scratch == str(scratch.resolve()):
        Isolation(plan, "").finish()


def _plan(way: str, scratch: Path, in_memory: bool) -> Plan:
    scratch.mkdir(parents=True, exist_ok=True)
    most = int(shutil.disk_usage(scratch).free * SHARE_OF_FREE_SPACE)
    used = (str(Path.cwd()), str(Path.home().resolve()), tempfile.gettempdir(), str(scratch))
    plan = Plan(way, str(scratch), used, in_memory, most)
    if plan.is_copy:
        plan = plan._replace(temporary=_short_folder())
    plan.results.mkdir(exist_ok=True)
    plan.layers.mkdir(exist_ok=True)
    (scratch / CACHE / WANDB.name).mkdir(parents=True, exist_ok=True)  # it ignores a folder that is missing
    plan.save()
    return plan


def _short_folder() -> str:
    usual = tempfile.gettempdir()
    return os.path.realpath(
        tempfile.mkdtemp(prefix="trial-", dir=usual if len(usual) < MOST_TEMPORARY_CHARACTERS else "/tmp")
    )


def _works(plan: Plan) -> bool:
    """Return whether a program that writes a file leaves it as it was."""
    if plan.way == GUARDED and (sys.platform != "linux" or linux.landlock_version() == 0):
        return _discard(plan)
    if not plan.is_copy and sys.platform != "linux":
        return _discard(plan)
    folder = Path(tempfile.mkdtemp(prefix="trial-probe-"))
    probe = folder / "probe"
    probe.write_text("as it was")
    script = "open('probe', 'w').write('changed'); assert open('probe').read() == 'changed'; open('made', 'x').close()"
    isolation = Isolation(plan, "")
    try:
        process = subprocess.run(
            isolation.command([sys.executable, "-c", script]),
            env=isolation.environ({"PATH": os.defpath}),
            cwd=folder,
            capture_output=True,
            timeout=PROBE_TIMEOUT_S,
            check=False,
            start_new_session=True,  # Ctrl-C would make it look as if this way did not work
        )
        works = process.returncode == 0 and probe.read_text() == "as it was" and os.listdir(folder) == ["probe"]
    except subprocess.TimeoutExpired:
        works = False
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    if not works:
        return _discard(plan)
    _remove(plan.layers)
    _remove(plan.folder)
    plan.layers.mkdir()
    plan.save()
    return True


def _discard(plan: Plan) -> bool:
    """Remove what was made for a way that does not work; return False."""
    for folder in (plan.layers, plan.folder, *([Path(plan.temporary)] if plan.temporary else [])):
        _remove(folder)
    return False


def _remove(folder: Path) -> None:
    # An overlay leaves a folder that its owner may not read.
    for inner, names, _ in os.walk(folder):
        for name in names:
            if not os.path.islink(os.path.join(inner, name)):
                os.chmod(os.path.join(inner, name), 0o700)
    shutil.rmtree(folder, ignore_errors=True)
