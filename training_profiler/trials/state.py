"""How far a session of trials has come, in a file of the run folder, so that another process can go on with it.

The program, its arguments, settings, machine and versions have to be the same then: its identity.
"""

import fcntl
import hashlib
import os
import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import msgspec
import psutil

from training_profiler.base.errors import RunFolderError
from training_profiler.model.bounds import Count
from training_profiler.safety.files import read_file, replace_file
from training_profiler.sampling.host import Host, find_container
from training_profiler.statistics.differences import differing
from training_profiler.storage.run_folder import masked
from training_profiler.trials.isolation import program_files
from training_profiler.trials.launcher import Program
from training_profiler.trials.process import UnderWay
from training_profiler.trials.results import from_data
from training_profiler.trials.variants import ChangedFile, Variant

MOST_READ_BYTES: Final = 64 << 20  # a larger file is known by its size and time
# They decide how fast the same program is.
VARIABLES: Final = (
    "CUDA_VISIBLE_DEVICES",
    "GOMP_CPU_AFFINITY",
    "KMP_AFFINITY",
    "KMP_BLOCKTIME",
    "LD_PRELOAD",
    "MALLOC_CONF",
    "MKL_NUM_THREADS",
    "OMP_NUM_THREADS",
    "OMP_PROC_BIND",
    "OPENBLAS_NUM_THREADS",
    "PYTORCH_ALLOC_CONF",
    "PYTORCH_CUDA_ALLOC_CONF",
)


@dataclass(frozen=True, slots=True)
class Identity:
    """What has to be the same."""

    meta: dict[str, Any] = field(default_factory=dict)  # as in the run folder, with the program's command
    machine: dict[str, Any] = field(default_factory=dict)  # as in a run's report
    variables: dict[str, str] = field(default_factory=dict)
    arguments: str = ""  # digest of the command with what is masked in ``meta``
    files: dict[str, str] = field(default_factory=dict)  # their digests


def identity_of(program: Program, process: Mapping[str, Any], forms: Sequence[Variant] = ()) -> Identity:
    """Return the identity of a session, about forms of the program if there are any.

    ``process`` is the content of a meta.json.
    """
    words = list(program.words)
    of_forms = {f"{form.name}: {file.path}": _of(file) for form in forms for file in form.files}
    identity = Identity(
        dict(process) | {"command": shlex.join(masked(words))},
        _machine(),
        {name: os.environ[name] for name in VARIABLES if name in os.environ},
        hashlib.sha256("\0".join(words).encode("utf-8", "surrogateescape")).hexdigest(),
        {str(path): _digest(path) for path in program_files(words, Path.cwd())}
        | {f"try {form.name}": "" for form in forms}
        | of_forms,
    )
    return msgspec.json.decode(msgspec.json.encode(identity), type=Identity)  # as it comes back from a file


def why_another(before: Identity, now: Identity) -> str | None:
    """Return the first difference between two identities, as a clause; None if there is none."""
    for what, old, new in differing((before.meta, {"machine": before.machine}), (now.meta, {"machine": now.machine})):
        return f"{what} was {old or 'unknown'}, and is {new or 'unknown'}"
    for name in (name for name in VARIABLES if before.variables.get(name) != now.variables.get(name)):
        values = (each.variables.get(name, "not set") for each in (before, now))
        return f"{name} was {', and is '.join(values)}"
    if before.arguments != now.arguments:
        return "the arguments differ in a part that resembles a secret"
    # A changed file may import others; it is the reason for those that came or went.
    for path in (*(path for path in before.files if path in now.files), *(before.files.keys() ^ now.files.keys())):
        if before.files.get(path) != now.files.get(path):
            return f"{path} has changed"
    return None


def _machine() -> dict[str, Any]:
    cores, quota = Host(psutil).usable_cores, find_container().cpu_quota
    known = [number for number in (cores, quota) if number is not None]
    return {
        "cores": min(known, default=None),
        "ram_host_total_bytes": psutil.virtual_memory().total,
        "gpus": [{"index": index, "name": name} for index, name in enumerate(_gpus())],
    }


def _gpus() -> Iterator[str]:
    """Yield the models of the graphics cards, without a library that would take part of their memory."""
    for path in sorted(Path("/proc/driver/nvidia/gpus").glob("*/information")):
        with suppress(OSError):
            yield path.read_text("utf-8", "replace").partition("Model:")[2].partition("\n")[0].strip()


def _of(file: ChangedFile) -> str:
    return f"{file.mode:o} {hashlib.sha256(file.content).hexdigest()}"


def _digest(path: Path) -> str:
    try:
        status = path.stat()
        if status.st_size > MOST_READ_BYTES:
            return f"{status.st_size} bytes of {status.st_mtime_ns}"
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError:
        return "unreadable"


FILE: Final = "trials-state.json"
SCHEMA: Final = 1
MOST_BYTES: Final = 256 << 20


@dataclass(frozen=True)
class Wishes:
    """What the user asked for."""

    budget_s: float
    only: tuple[str, ...] = ()  # families or names of changes
    tries_all: bool = False
    numerics: bool = False  # whether changes of the numerics may be part of all together
    total_steps: Count | None = None  # of the whole training


@dataclass
class Progress:
    """What a session has done, by the names of changes, and so what is left."""

    chosen: list[str] = field(default_factory=list)  # all that are to be tried
    screened: list[str] = field(default_factory=list)  # that have run beside the unchanged training
    winners: list[str] = field(default_factory=list)  # that fresh trials have yet to confirm or refute
    gain_error: float = 0.0  # spent by fresh trials
    under_way: UnderWay | None = None

    def choose(self, names: Sequence[str]) -> None:
        """Decide what is to be tried."""
        self.chosen = list(names)

    def keep(self, under_way: UnderWay) -> None:
        """Keep how far the trainings that run have come."""
        self.under_way = under_way

    def end(self, changes: Sequence[str], seemed_to_help: Sequence[str], unspent: float = 0.0) -> None:
        """Note that trainings with these changes have run to their end; fresh trials decide about some of them.

        Changes that wait for a CPU that others have are slower, not faster by chance: they have their error again.
        """
        self.gain_error -= unspent
        is_fresh = self.under_way is not None and self.under_way.is_fresh
        self.screened += [] if is_fresh else changes
        self.winners = [name for name in self.winners if name not in changes] + list(seemed_to_help)
        self.under_way = None

    def error_for(self, names: Sequence[str], error: float) -> float:
        """Take from the error of the session what fresh trials of some winners may spend, and return it.

        Changes that have not run yet keep their part of it.
        """
        until_now = error * len(self.screened) / len(self.chosen) - self.gain_error
        spent = until_now * len(set(names) & set(self.winners)) / len(self.winners)
        self.gain_error += spent
        return spent

    @property
    def left(self) -> list[str]:
        """The changes without a last word."""
        return [name for name in self.chosen if name not in self.screened or name in self.winners]


@dataclass(frozen=True)
class SessionState:
    """A session that can go on."""

    schema: Count
    identity: Identity
    words: list[str]  # the program's command, without secrets
    is_python: bool
    wishes: Wishes
    memory_bytes: Count  # of a training
    has_ended: bool  # whether the first run came to its end by itself
    results: dict[str, Any]  # so far
    progress: Progress


def save_state(folder: Path, state: SessionState) -> None:
    """Write the state to the run folder, in place of an older one; an ``OSError`` says that it cannot be written."""
    replace_file(folder / FILE, msgspec.json.encode(state))


def load_state(folder: Path) -> SessionState:
    """Return the state of the session in a run folder.

    Raises:
        RunFolderError: there is none that can be read.
    """
    try:
        state = msgspec.json.decode(read_file(folder / FILE, MOST_BYTES), type=SessionState)
        from_data(state.results)
    except FileNotFoundError:
        raise RunFolderError(f"{folder}: no session of trials to go on with") from None
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise RunFolderError(f"{folder / FILE} cannot be read: {error}") from None
    if state.schema != SCHEMA:
        raise RunFolderError(f"{folder / FILE} is of another version of training-profiler")
    return state


@contextmanager
def held(folder: Path) -> Iterator[None]:
    """Keep other sessions from going on in the same run folder.

    Raises:
        RunFolderError: another session does.
    """
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise RunFolderError(f"{folder}: another session of trials is at work there") from None
        except OSError:  # a file system without locks
            pass
        yield
    finally:
        os.close(descriptor)
