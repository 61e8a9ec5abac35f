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
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from training_profiler.base.errors import ProfilerError
from training_profiler.tables.trackers import WANDB
from training_profiler.trials.isolation import linux, processes, promise, trackers, written
from training_profiler.trials.isolation.plan import (
    FOLDER,
    GUARDED,
    NAMESPACES,
    REDIRECTED,
    SHARED_MEMORY,
    SHARED_PROCESSES,
    TRIAL,
    WAYS,
    Plan,
    load_plan,
)

LAUNCHER: Final = Path(__file__).with_name("launcher.py")
STARTUP: Final = Path(__file__).with_name("startup")
CACHE: Final = "cache"  # in the scratch folder
MEMORY_FILES: Final = Path("/dev/shm")
PROBE_TIMEOUT_S: Final = 60.0
SHARE_OF_FREE_SPACE: Final = 0.25  # for one file; a checkpoint and what it replaces are there together
MOST_TEMPORARY_CHARACTERS: Final = 50  # Linux allows 107 in the name of a socket, and loader workers make some


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
        self.way = plan.way
        """One of ``plan.WAYS``."""
        self.promise = promise
        """What holds and what does not, for people: a few lines."""
        self.results = Path(plan.scratch, "results")
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
            **trackers.offline(environ),
            TRIAL: str(self._plan.folder),
            # An empty entry would mean the current folder, so an empty variable must not become one.
            "PYTHONPATH": os.pathsep.join([str(STARTUP), *(before if before != [""] else [])]),
        }
        if self._plan.is_redirected:
            cache = Path(self._plan.scratch, CACHE)
            composed |= {
                "PYTHONDONTWRITEBYTECODE": "1",  # the import system writes around all that Python can replace
                "TMPDIR": self._plan.temporary,
                "WANDB_DIR": str(cache / WANDB.name),
                "WANDB_CACHE_DIR": str(cache / "wandb-cache"),
                "WANDB_DATA_DIR": str(cache / "wandb-data"),
                "HF_MODULES_CACHE": str(cache / "hf-modules"),
            }
            for name in ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "TORCH_EXTENSIONS_DIR"):  # of compilers
                if not self._is_writable(environ.get(name, "")):
                    composed[name] = str(cache / name.lower())
        return composed

    def _is_writable(self, folder: str) -> bool:
        return bool(folder) and any(Path(folder).is_relative_to(top) for top in self._plan.writable)

    def finish(self) -> FinishReport:
        """End every process of the trial and remove the scratch folder."""
        ended, alive = processes.end_trial(self._plan.folder)
        changes = written.load(self._plan)
        ended = [*self._plan.read_ended(), *ended]
        for path in self._shared_memory():
            path.unlink(missing_ok=True)
        folders = [folder for folder in (self._plan.scratch, self._plan.temporary) if folder]
        for folder in folders:
            _remove(Path(folder))
        return FinishReport(changes, tuple(ended), (*alive, *filter(os.path.lexists, folders)))

    def _shared_memory(self) -> Iterator[Path]:
        """Yield the files of shared memory that processes of the trial have left behind."""
        record = self._plan.folder / SHARED_MEMORY
        if record.exists() and MEMORY_FILES.is_dir():
            for name in record.read_text(encoding="utf-8", errors="surrogateescape").splitlines():
                yield from MEMORY_FILES.glob(name)


def prepare(
    scratch: Path, writable: Sequence[Path] = (), script: Path | None = None, ways: Sequence[str] = WAYS
) -> Isolation:
    """Return the isolation of a trial, by the strongest way that works here.

    Args:
        scratch: a folder for what the trial writes; it is made, and removed by ``finish``.
        writable: folders that the trial may write to, such as a cache that the next trial uses as well.
        script: the program, to name the trackers that it imports.
        ways: the ways to try, the strongest first.

    Raises:
        IsolationError: none works.
    """
    scratch = scratch.resolve()
    for way in ways:
        for in_memory in (False, True) if way in (NAMESPACES, SHARED_PROCESSES) else (False,):
            plan = _plan(way, scratch, writable, in_memory)
            if _works(plan):
                found = None if script is None else trackers.trackers_of(script)
                return Isolation(plan, promise.promise(plan, found, shutil.disk_usage(scratch).free))
    _remove(scratch)
    raise IsolationError(
        "a trial cannot be kept apart from your files here: namespaces, Landlock and redirection were all refused"
    )


def finish_trial(scratch: Path) -> None:
    """End and remove what is left of a trial whose session was killed, if there is one in this scratch folder."""
    try:
        plan = load_plan(str(scratch / FOLDER))
    except (OSError, ValueError, TypeError, KeyError):
        return
    if plan.scratch == str(scratch.resolve()):
        Isolation(plan, "").finish()


def _plan(way: str, scratch: Path, writable: Sequence[Path], in_memory: bool) -> Plan:
    results = scratch / "results"
    results.mkdir(parents=True, exist_ok=True)
    for folder in writable:
        folder.mkdir(parents=True, exist_ok=True)
    folders = (str(results), *(str(folder.resolve()) for folder in writable))
    most = int(shutil.disk_usage(scratch).free * SHARE_OF_FREE_SPACE)
    used = (str(Path.cwd()), str(Path.home().resolve()), tempfile.gettempdir(), str(scratch))
    temporary = _short_folder() if way in (GUARDED, REDIRECTED) else ""
    plan = Plan(way, str(scratch), used, folders, in_memory, most, temporary)
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
    if plan.way in (NAMESPACES, SHARED_PROCESSES) and sys.platform != "linux":
        return _discard(plan)
    folder = Path(tempfile.mkdtemp(prefix="trial-probe-"))
    probe = folder / "probe"
    probe.write_text("as it was")
    script = (
        "import os, sys; path = sys.argv[1]; open(path, 'w').write('changed'); assert open(path).read() == 'changed'; "
        "os.mkdir(os.path.dirname(path) + '/made')"
    )
    isolation = Isolation(plan, "")
    try:
        process = subprocess.run(
            isolation.command([sys.executable, "-c", script, str(probe)]),
            env=isolation.environ({"PATH": os.defpath}),
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
