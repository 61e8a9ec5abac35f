"""Isolates one trial.

    isolation = prepare(scratch)
    process = subprocess.Popen(isolation.command(["python", "train.py"]), env=isolation.environ(environment))
    ...
    left = isolation.finish()

What the trial writes is gone after ``finish``; the caller reads ``isolation.results`` before. ``promise`` is what holds
during a trial and what does not, in words for the user.
"""

import ast
import fcntl
import os
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from textwrap import wrap
from typing import Final, NamedTuple

from training_profiler.base.errors import ProfilerError
from training_profiler.base.trackers import MLFLOW, WANDB
from training_profiler.base.units import BYTES_PER_GIB
from training_profiler.trials.isolated_program import (
    FOLDER,
    GUARDED,
    NAMESPACES,
    SHARED_MEMORY,
    SHARED_PROCESSES,
    TRIAL,
    UNGUARDED,
    WAYS,
    Plan,
    end_trial,
    load_plan,
)
from training_profiler.trials.namespaces import landlock_version

LAUNCHER: Final = Path(__file__).with_name("isolated_program.py")
STARTUP: Final = Path(__file__).with_name("startup")
CACHE: Final = "cache"  # in the scratch folder
MEMORY_FILES: Final = Path("/dev/shm")
PROBE_TIMEOUT_S: Final = 60.0
SHARE_OF_FREE_SPACE: Final = 0.25  # for one file; a checkpoint and what it replaces are there together
MOST_TEMPORARY_CHARACTERS: Final = 50  # Linux allows 107 in the name of a socket, and loader workers make some


class IsolationError(ProfilerError):
    """No way of isolating a trial works here."""


class Isolation:
    """One trial's isolation.

    Args:
        plan: of the trial.
        promise: what holds and what does not, for people: a few lines.
    """

    def __init__(self, plan: Plan, promise: str = "") -> None:
        self._plan, self.promise = plan, promise
        self.way, self.results = plan.way, plan.results

    def show(self, files: Sequence[tuple[str, int, bytes]]) -> None:
        """Let the program see other files than the user's: path, git's mode or 0 for none, and content of each."""
        folder = self._plan.folder / "files"
        folder.mkdir(exist_ok=True)
        named = [(path, mode, str(folder / str(number))) for number, (path, mode, _) in enumerate(files)]
        for (_, _, place), (_, _, content) in zip(named, files, strict=True):
            Path(place).write_bytes(content)
        self._plan = self._plan._replace(files=tuple(named))
        self._plan.save()

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
        alive = end_trial(self._plan.folder)
        record = self._plan.folder / SHARED_MEMORY  # what processes of the trial have left behind
        if record.exists() and MEMORY_FILES.is_dir():
            for name in record.read_text(encoding="utf-8", errors="surrogateescape").splitlines():
                for path in MEMORY_FILES.glob(name):
                    path.unlink(missing_ok=True)
        folders = [folder for folder in (self._plan.scratch, self._plan.temporary) if folder]
        for folder in folders:
            _remove(Path(folder))
        return (*alive, *filter(os.path.lexists, folders))


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
            for folder in (plan.layers, plan.folder, *([Path(plan.temporary)] if plan.temporary else [])):
                _remove(folder)
    _remove(scratch)
    raise IsolationError(
        "a trial cannot be kept apart from your files here: namespaces and Landlock were refused; with --allow-writes, "
        "it runs in a copy of this folder, and what it writes elsewhere stays"
    )


def _plan(way: str, scratch: Path, in_memory: bool) -> Plan:
    scratch.mkdir(parents=True, exist_ok=True)
    usual = tempfile.gettempdir()
    most = int(shutil.disk_usage(scratch).free * SHARE_OF_FREE_SPACE)
    plan = Plan(way, str(scratch), (str(Path.cwd()), str(Path.home().resolve()), usual, str(scratch)), in_memory, most)
    if plan.is_copy:
        short = usual if len(usual) < MOST_TEMPORARY_CHARACTERS else "/tmp"
        plan = plan._replace(temporary=os.path.realpath(tempfile.mkdtemp(prefix="trial-", dir=short)))
    plan.results.mkdir(exist_ok=True)
    plan.layers.mkdir(exist_ok=True)
    (scratch / CACHE / WANDB.name).mkdir(parents=True, exist_ok=True)  # it ignores a folder that is missing
    plan.save()
    return plan


def _works(plan: Plan) -> bool:
    """Return whether a program that writes a file leaves it as it was."""
    if (plan.way != UNGUARDED and sys.platform != "linux") or (plan.way == GUARDED and landlock_version() == 0):
        return False
    folder = Path(tempfile.mkdtemp(prefix="trial-probe-"))
    probe = folder / "probe"
    probe.write_text("as it was")
    script = "open('probe', 'w').write('changed'); assert open('probe').read() == 'changed'; open('made', 'x').close()"
    isolation = Isolation(plan)
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
    if works:
        _remove(plan.layers)
        _remove(plan.folder)
        plan.layers.mkdir()
        plan.save()
    return works


def _remove(folder: Path) -> None:
    # An overlay leaves a folder that its owner may not read.
    for inner, names, _ in os.walk(folder):
        for name in names:
            if not os.path.islink(os.path.join(inner, name)):
                os.chmod(os.path.join(inner, name), 0o700)
    shutil.rmtree(folder, ignore_errors=True)


PREFIX: Final = "training-profiler-try-"
LOCK: Final = "lock"  # held as long as the session lives: the system lets go of it also if that is killed


@contextmanager
def scratch_folder(top: Path) -> Iterator[Path]:
    """Make a folder in ``top`` for what the trainings of a session write, and remove it at the end.

    Those of sessions that were killed are removed, too, and what is left of their trials is ended.
    """
    with suppress(OSError):
        _remove_left_behind(top)
    folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir=top))
    new = folder / (LOCK + "-new")
    descriptor = os.open(new, os.O_RDWR | os.O_CREAT, 0o600)
    if _lock(descriptor):
        new.rename(folder / LOCK)  # no other session finds a lock that is not held yet
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(descriptor)


def _lock(descriptor: int) -> bool:
    """Return whether the lock of this open file is ours now; no process's on file systems without locks."""
    with suppress(OSError):
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    return False


def _remove_left_behind(top: Path) -> None:
    for folder in top.glob(PREFIX + "*"):
        with suppress(OSError):
            status = folder.lstat()
            if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid():
                continue
            descriptor = os.open(folder / LOCK, os.O_RDWR | os.O_NOFOLLOW)
            try:
                if _lock(descriptor):
                    for trial in folder.iterdir():
                        _finish_trial(trial)
                    shutil.rmtree(folder, ignore_errors=True)
            finally:
                os.close(descriptor)


def _finish_trial(scratch: Path) -> None:
    try:
        plan = load_plan(str(scratch / FOLDER))
    except (OSError, ValueError, TypeError, KeyError):
        return
    if plan.scratch == str(scratch.resolve()):
        Isolation(plan).finish()


WIDTH: Final = 78  # of a terminal
HOLDS: Final = {
    NAMESPACES: "Your files stay as they are: each trial writes to a copy of the file system that is removed after it, "
    "and its processes end with it.",
    SHARED_PROCESSES: "Your files stay as they are: each trial writes to a copy of the file system that is removed "
    "after it, and its processes are ended.",
    GUARDED: "Your files stay as they are: each trial runs in a copy of this folder that is then removed, and the "
    "kernel refuses what it would write elsewhere. Its processes are ended after it.",
    UNGUARDED: "Each trial runs in a copy of this folder that is then removed. Not promised here: what it writes "
    "elsewhere stays. Processes are ended after it.",
}


class DisabledTracker(NamedTuple):
    """A library that sends what a training measures to other machines."""

    module: str
    name: str
    variables: Mapping[str, str]  # that ask it to stay offline
    is_held: bool = False  # offline also where the program asks for the opposite; a test shows it


TRACKERS: Final = (
    DisabledTracker(WANDB.name, "W&B", {"WANDB_MODE": "offline"}, is_held=True),
    DisabledTracker(MLFLOW.name, "MLflow", {"MLFLOW_ALLOW_FILE_STORE": "true"}, is_held=True),
    DisabledTracker("comet_ml", "Comet", {"COMET_START_ONLINE": "0"}),
    DisabledTracker("neptune", "Neptune", {"NEPTUNE_MODE": "offline"}),
    DisabledTracker("clearml", "ClearML", {"CLEARML_OFFLINE_MODE": "1"}),
    DisabledTracker("swanlab", "SwanLab", {"SWANLAB_MODE": "offline"}),
    DisabledTracker("huggingface_hub", "Hugging Face Hub", {"HF_HUB_OFFLINE": "1"}),
    DisabledTracker("aim", "Aim", {}),
)
KEPT: Final = {("WANDB_MODE", "disabled"), ("WANDB_MODE", "dryrun"), ("NEPTUNE_MODE", "debug")}


def promise(plan: Plan, found: Sequence[DisabledTracker] | None, free_bytes: int) -> str:
    """Return the lines to show before the first trial.

    Args:
        plan: how trials are kept apart.
        found: the trackers that the program imports; None if its script is not known.
        free_bytes: the free space where trials write.
    """
    place = "memory" if plan.layers_in_memory else f"{free_bytes / BYTES_PER_GIB:.0f} GiB of free disk"
    most = f"at most {plan.most_file_bytes / BYTES_PER_GIB:.1f} GiB a file"
    lines = [HOLDS[plan.way], f"A trial writes to {place}, {most}.", _network(found)]
    return "\n".join(line for text in lines for line in wrap(text, WIDTH))


def _network(found: Sequence[DisabledTracker] | None) -> str:
    parts = ["Not promised: what the program itself sends over the network."]
    if found is None:
        return parts[0]
    held = [tracker.name for tracker in found if tracker.is_held]
    asked = [tracker.name for tracker in found if not tracker.is_held and tracker.variables]
    free = [tracker.name for tracker in found if not tracker.is_held and not tracker.variables]
    if held:
        parts.append(f"Kept offline: {', '.join(held)}.")
    if asked:
        parts.append(f"Asked to stay offline by a variable, which the program can overrule: {', '.join(asked)}.")
    if free:
        parts.append(f"Not held back: {', '.join(free)}.")
    if not found:
        parts.append("The script imports none of the known trackers by name.")
    return " ".join(parts)


def offline(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that keep all trackers offline; what is off already stays so."""
    wanted = {name: value for tracker in TRACKERS for name, value in tracker.variables.items()}
    return {name: value for name, value in wanted.items() if (name, environ.get(name)) not in KEPT}


@cache  # each start of a training asks again
def trackers_of(script: Path) -> list[DisabledTracker]:
    """Return the trackers that a script, or a module beside it that it imports, imports by name."""
    files = program_files(["", str(script)], Path.cwd())
    imported = {name.partition(".")[0] for path in files for level, name in _imports_of(path) if not level}
    return [tracker for tracker in TRACKERS if tracker.module in imported]


def program_files(words: Sequence[str], folder: Path) -> list[Path]:
    """Return the files that a command names, and the modules beside a script that it imports, however deep."""
    named = [folder / part for word in words[1:] for part in (word, word.partition("=")[2]) if part]
    module = words[words.index("-m") + 1] if "-m" in words[:-1] else ""
    left = [path for path in named if os.path.isfile(path)] + list(_files_of(module, folder))
    found: dict[Path, None] = {}
    while left:
        path = left.pop()
        if path not in found:
            found[path] = None
            left += _imported(path, folder) if path.suffix == ".py" else ()
    return list(found)


def _imported(path: Path, folder: Path) -> Iterator[Path]:
    """Yield the files of the modules that a file imports, as far as they lie beside the program."""
    for level, name in _imports_of(path):
        roots = [path.parent, folder, *path.parent.parents[:2]]
        if level:
            roots = [path.parents[min(level, len(path.parents)) - 1]]
        yield from (found for root in roots for found in _files_of(name, root))


def _files_of(module: str, folder: Path) -> Iterator[Path]:
    parts = [part for part in module.split(".") if part]
    for length in range(1, len(parts) + 1):
        inside = folder.joinpath(*parts[:length])
        for path in (inside.with_suffix(".py"), inside / "__init__.py", inside / "__main__.py"):
            if path.is_file():
                yield path


def _imports_of(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the modules that a file imports: of how many folders up, 0 for any, and the dotted name."""
    try:
        tree = ast.parse(path.read_bytes())
    except (OSError, ValueError, SyntaxError, RecursionError):
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((0, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            start = node.module or ""
            yield node.level, start
            yield from ((node.level, f"{start}.{alias.name}".lstrip(".")) for alias in node.names)
