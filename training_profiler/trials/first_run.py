"""The first run of a session: the unchanged training, profiled, until it has shown what is worth trying."""

import shutil
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from typing import Final

from training_profiler.base.errors import ProfilerError, RunFolderError
from training_profiler.base.units import S_PER_MINUTE, duration_text
from training_profiler.diagnosis import diagnose
from training_profiler.findings.finding import Finding
from training_profiler.snapshot.snapshot import Snapshot
from training_profiler.storage.run_reader import newest_runs, read_run
from training_profiler.trials.interleaved import BlockSchedule, steps_of_a_block
from training_profiler.trials.launcher import Launcher, Training
from training_profiler.trials.process import ReadsStdinError, TrialError
from training_profiler.trials.statistics import FEWEST_ROUNDS

FEWEST_STEPS: Final = 20
ENOUGH_STEPS: Final = 60
ENOUGH_S: Final = 5.0  # of steps
LONGEST_PART: Final = 0.4  # of the budget
SCREEN_PART: Final = 0.6  # of the budget that is left after the first run; fresh trials take the rest
LOOK_S: Final = 0.5
END_S: Final = 20.0


class TryError(ProfilerError):
    """Nothing can be tried on this program."""


@dataclass(frozen=True, slots=True)
class FirstRun:
    """What the first run has shown."""

    snapshot: Snapshot
    findings: list[Finding]
    startup_s: float  # until the first step
    memory_bytes: int
    has_ended: bool  # by itself
    is_interrupted: bool = False  # by the user, after enough steps for a session to go on with

    @property
    def step_s(self) -> float:
        """The time of a step: the median, or the mean if it is longer, as where most steps only queue their work."""
        step = self.snapshot.step
        assert step is not None
        return max(step.median_s, step.avg_s)


def run_first(
    launcher: Launcher, budget_s: float, runs: Path, on_progress: Callable[[float, str], None]
) -> tuple[FirstRun, Path]:
    """Run the unchanged training as long as its findings need; return what it shows, and its run folder in ``runs``.

    Raises:
        TryError: it fails by itself, reads standard input, or makes too few steps in a part of the budget.
        KeyboardInterrupt: the user ended it before it had shown anything.
    """
    training = launcher.start_profiled()
    name = launcher.program.shown
    begin_s = time.monotonic()
    seen, is_interrupted = Snapshot(), False
    try:
        try:
            seen = _watch(training, launcher.runs_of(training), name, LONGEST_PART * budget_s, on_progress)
        except KeyboardInterrupt:
            is_interrupted = True
        has_ended = training.process.poll() is not None
        memory_bytes = training.process.memory_bytes()
        training.process.interrupt(END_S)
        training.isolation.name_originals(launcher.runs_of(training))
        snapshot = _read(launcher.runs_of(training)) or seen
        if is_interrupted and (snapshot.step is None or snapshot.steps < FEWEST_STEPS):
            raise KeyboardInterrupt
        if has_ended and training.process.poll() != 0 and snapshot.steps < FEWEST_STEPS:
            raise TryError(f"{name} fails by itself: {training.process.reason()}")
        if snapshot.step is None or snapshot.steps < FEWEST_STEPS:
            raise TryError(_too_few(name, snapshot, has_ended, time.monotonic() - begin_s, budget_s))
        folder = _keep(launcher.runs_of(training), runs)
    finally:
        training.close()
    startup_s = snapshot.step.before_s or 0.0
    return FirstRun(snapshot, diagnose(snapshot), startup_s, memory_bytes, has_ended, is_interrupted), folder


def _watch(
    training: Training, runs: Path, name: str, longest_s: float, on_progress: Callable[[float, str], None]
) -> Snapshot:
    begin_s = time.monotonic()
    snapshot = Snapshot()
    has_ended = False
    while not has_ended and time.monotonic() - begin_s < longest_s:
        has_ended = training.process.poll() is not None  # asked first: what it sent before its end is still read
        try:
            training.process.listen(0.0 if has_ended else LOOK_S)
        except ReadsStdinError:
            raise TryError(f"{name} reads standard input, of which a trial has none") from None
        except TrialError as error:
            raise TryError(f"{name} cannot be tried: {error}") from None
        snapshot = _read(runs) or snapshot
        on_progress(0.0, f"runs {name} unchanged under the profiler: {snapshot.steps} steps")
        step = snapshot.step
        if step is not None and snapshot.steps >= ENOUGH_STEPS and step.total_s >= ENOUGH_S:
            break
    return snapshot


def _too_few(name: str, snapshot: Snapshot, has_ended: bool, seconds: float, budget_s: float) -> str:
    steps = snapshot.steps
    if not steps:
        more = _budget(max(10 * S_PER_MINUTE, 3 * budget_s))
        how = "until its end" if has_ended else f"in {duration_text(seconds)}; example: --budget {more}"
        return f"{name}: no training step was seen {how}"
    counted = "1 step" if steps == 1 else f"{steps} steps"
    if has_ended:
        return f"{name} has {counted} in all; a trial needs {FEWEST_STEPS}"
    startup_s = 0.0 if snapshot.step is None else snapshot.step.before_s or 0.0
    more = enough_budget(max(0.0, seconds - startup_s) / steps, startup_s)
    return (
        f"{name} makes {counted} in {duration_text(seconds)}, {LONGEST_PART:.0%} of the budget; a trial needs "
        f"{FEWEST_STEPS}: example: --budget {more}"
    )


def enough_budget(step_s: float, startup_s: float) -> str:
    """Return a budget in which a change can be tried and confirmed, as --budget takes it."""
    first_s = startup_s + max(ENOUGH_STEPS * step_s, ENOUGH_S)
    wave = BlockSchedule(0, FEWEST_ROUNDS, steps_of_a_block(step_s), step_s, startup_s).seconds(3, 1)
    return _budget(max(first_s / LONGEST_PART, first_s + wave / (1 - SCREEN_PART)))


def _budget(seconds: float) -> str:
    minutes = max(2, ceil(seconds / S_PER_MINUTE))
    return f"{minutes}m" if minutes <= 90 else f"{ceil(minutes / 60)}h"


def _read(runs: Path) -> Snapshot | None:
    try:
        return read_run(newest_runs(runs, 1)[0])
    except (RunFolderError, OSError):
        return None


def _keep(made: Path, runs: Path) -> Path:
    """Copy the run folder of the first run to where the user keeps runs; return it."""
    source = newest_runs(made, 1)[0]
    runs.mkdir(parents=True, exist_ok=True)
    for number in range(1, 100):
        target = runs / (source.name if number == 1 else f"{source.name}-{number}")
        with suppress(FileExistsError):
            shutil.copytree(source, target, symlinks=True)
            return target
    raise TryError(f"{runs} has too many runs of the same second")
