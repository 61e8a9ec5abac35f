"""Starts the trainings of a session: each in a folder and an isolation of its own."""

import shutil
import signal
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from training_profiler.base.errors import ProfilerError
from training_profiler.base.switch import SWITCH, TRIAL_PLAN, launch_environment, set_variable
from training_profiler.base.units import bytes_text
from training_profiler.trials.child import ChildPlan
from training_profiler.trials.isolated_program import WAYS, WAYS_WITH_WRITES
from training_profiler.trials.isolation import SHARE_OF_FREE_SPACE, Isolation, prepare
from training_profiler.trials.process import TrialProcess
from training_profiler.trials.treatment import Treatment
from training_profiler.trials.variants import AS_IT_IS, Variant

BOOTSTRAP: Final = Path(__file__).parents[1] / "bootstrap"
RUNS: Final = "runs"
PRELOAD: Final = "LD_PRELOAD"
ASKED_TO_END: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
SETTINGS_OF_FIRST_RUN: Final = {"_LOG_EVERY": "0", "_FLUSH_S": "1", "_SINKS": ""}


class Interruption:
    """Notes that the user wants the session to end. It is raised where the session asks, and only there.

    Raised anywhere, it could come between the start of a training and the note of it, or while files are removed. The
    same goes for a second one, so that has no further effect.
    """

    def __init__(self) -> None:
        self.has_come = False
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> "Interruption":
        for number in ASKED_TO_END:
            if signal.getsignal(number) is not signal.SIG_IGN:  # as behind nohup
                self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *error: object) -> None:
        for number, before in self._before.items():
            signal.signal(number, before)

    def _note(self, *signal_and_frame: object) -> None:
        self.has_come = True

    def check(self) -> None:
        """Return while the session may go on.

        Raises:
            KeyboardInterrupt: it may not.
        """
        if self.has_come:
            raise KeyboardInterrupt


class DiskSpaceError(ProfilerError):
    """The trainings of a session write more than the disk has room for."""


@dataclass(frozen=True)
class Program:
    """What the user wants to try changes on, as a command."""

    words: Sequence[str]  # the first is an executable file
    is_python: bool  # whether it is a Python interpreter
    shown: str  # its name in reports

    @property
    def script(self) -> Path | None:
        """The file that trains; None for a module or another command."""
        return next((path for word in self.words[1:] if (path := Path(word)).suffix == ".py" and path.is_file()), None)


@dataclass
class Training:
    """A training of a session, and its isolation."""

    process: TrialProcess
    isolation: Isolation
    left: tuple[str, ...] | None = field(default=None, init=False)

    def close(self) -> None:
        """End it, with everything that it has started and written."""
        if self.left is None:
            self.process.close()
            self.left = self.isolation.finish()


@dataclass
class Launcher:
    """Starts trainings.

    ``check`` is called before a start, and several times a second while a training runs; what it raises ends the wait.
    """

    program: Program  # of the user
    scratch: Path  # a folder of ours for everything that trainings write
    table: str  # module that has ``TREATMENTS``, for the trials' processes
    on_promise: Callable[[str], None] = lambda promise: None  # called once, with what is kept apart and what is not
    check: Callable[[], None] = lambda: None
    allow_writes: bool = False  # whether trainings may be kept apart less well where nothing else works
    base: Variant = AS_IT_IS  # of the program, unless a start names another

    def __post_init__(self) -> None:
        self._ways = WAYS_WITH_WRITES if self.allow_writes else WAYS
        self._first_bytes = shutil.disk_usage(self.scratch).free
        self._trainings: list[Training] = []

    def start(self, treatments: Sequence[Treatment], warmup: int, variant: Variant | None = None) -> Training:
        """Start a training with these changes, which runs to the end of its warm-up and waits there."""
        return self._start(treatments, warmup, {SWITCH: "0"}, variant=variant)

    def start_profiled(self) -> Training:
        """Start the unchanged training under the profiler; its run folder is in ``runs_of``."""
        return self._start((), 0, {SWITCH + name: value for name, value in SETTINGS_OF_FIRST_RUN.items()}, True)

    def runs_of(self, training: Training) -> Path:
        """Return the folder for the run folder of a profiled training."""
        return training.isolation.results / RUNS

    def close(self) -> None:
        """End all trainings that have not ended yet."""
        for training in self._trainings:
            training.close()

    def left(self) -> list[str]:
        """Return what ended trainings have left behind: processes and files."""
        return [name for training in self._trainings for name in training.left or ()]

    def _start(
        self,
        treatments: Sequence[Treatment],
        warmup: int,
        variables: Mapping[str, str],
        is_profiled: bool = False,
        variant: Variant | None = None,
    ) -> Training:
        self.check()
        variant = variant or self.base
        isolation = prepare(self.scratch / str(len(self._trainings)), self.program.script, self._ways)
        if not self._trainings:
            self.on_promise(isolation.promise)
        isolation.show(variant.files)
        names = [treatment.name for treatment in treatments]
        process = TrialProcess(isolation.results, ChildPlan("", self.table, names, warmup, is_profiled), self._watch)
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", 0))
            free_port = listener.getsockname()[1]
        environment = launch_environment(str(BOOTSTRAP), self.program.is_python) | {
            TRIAL_PLAN: str(process.plan_path),
            "PYTHONHASHSEED": "0",  # the order of a set of words would differ from process to process
            "PYTHONUNBUFFERED": "1",
            "PET_MASTER_PORT": str(free_port),  # torchrun's own is the same for all of them
        }
        if is_profiled:
            variables = {**variables, SWITCH + "_DIR": str(isolation.results / RUNS)}
        for name, value in variables.items():
            set_variable(environment, name, value)
        for treatment in treatments:
            environment = with_variables(environment, treatment.environment())
        training = Training(process, isolation)
        self._trainings.append(training)  # first, so that ``close`` ends it whatever happens
        process.start(isolation.command([*self.program.words, *variant.arguments]), isolation.environ(environment))
        return training

    def _watch(self) -> None:
        """Return while the session may go on, and more is free than a single file may take.

        Each of several trainings may write checkpoints at the same time.
        """
        self.check()
        free_bytes = shutil.disk_usage(self.scratch).free
        if free_bytes < int(SHARE_OF_FREE_SPACE * self._first_bytes):
            raise DiskSpaceError(
                f"stopped before the disk is full: {self.scratch} had {bytes_text(self._first_bytes)} free, and has "
                f"{bytes_text(free_bytes)}; TMPDIR chooses another disk"
            )


def with_variables(environment: Mapping[str, str], added: Mapping[str, str]) -> dict[str, str]:
    """Return an environment with more variables; a library to load first goes before those that are loaded already."""
    combined = {**environment, **added}
    if environment.get(PRELOAD) and added.get(PRELOAD):
        combined[PRELOAD] = f"{added[PRELOAD]}:{environment[PRELOAD]}"
    return combined
