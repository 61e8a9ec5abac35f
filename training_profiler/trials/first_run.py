"""The first run of a session: the unchanged training, profiled, and how much it shows will fit into time and memory."""

import shutil
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from typing import Final

import psutil

from training_profiler.base.errors import ProfilerError, RunFolderError
from training_profiler.base.units import S_PER_MINUTE, duration_text, time_text
from training_profiler.diagnosis import diagnose
from training_profiler.diagnosis.finding import Finding
from training_profiler.diagnosis.machine import cpu_loss
from training_profiler.diagnosis.worker_plan import BATCHES_NEEDED, MOST_WORKERS, batch_times
from training_profiler.model.snapshot import LoaderStats, Snapshot
from training_profiler.storage.run_reader import newest_runs, read_run
from training_profiler.trials.launcher import Launcher, Training
from training_profiler.trials.process import ReadsStdinError, TrialError
from training_profiler.trials.statistics import FEWEST_ROUNDS, LEAST_BLOCK_S, BlockSchedule, steps_of_a_block

FEWEST_STEPS: Final = 20
ENOUGH_STEPS: Final = 60
ENOUGH_S: Final = 5.0  # of steps
LONGEST_PART: Final = 0.4  # of the budget
SCREEN_PART: Final = 0.6  # of the budget that is left after the first run; fresh trials take the rest
LOOK_S: Final = 0.5
END_S: Final = 20.0
MOST_ROUNDS: Final = 30
ENOUGH_ROUNDS: Final = 20  # of long blocks
LONG_BLOCK_S: Final = 0.25  # at least, where workers make the batches
SWITCH_S: Final = 0.03  # between two blocks
LEAST_WARMUP, MOST_WARMUP = 3, 20  # steps
MEMORY_PART: Final = 0.7  # of what is free, for the trainings that wait
MOST_AT_ONCE: Final = 4  # trainings that start at the same time
LEAST_WAIT: Final = 0.05  # of the time of a batch; below, more workers bring nothing that a trial could show


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

    @classmethod
    def of(cls, snapshot: Snapshot, memory_bytes: int, has_ended: bool, is_interrupted: bool = False) -> "FirstRun":
        """Return what a run has shown whose snapshot this is."""
        startup_s = 0.0 if snapshot.step is None else snapshot.step.before_s or 0.0
        return cls(snapshot, diagnose(snapshot), startup_s, memory_bytes, has_ended, is_interrupted)

    @property
    def step_s(self) -> float:
        """The time of a step: the median, or the mean if it is longer, as where most steps only queue their work."""
        step = self.snapshot.step
        assert step is not None
        return max(step.median_s, step.avg_s)

    @property
    def part_in_steps(self) -> float | None:
        """The part of the training time that is in steps; None where it is not known."""
        step, training_s = self.snapshot.step, self.snapshot.training_s
        return None if step is None or training_s <= 0 else min(1.0, step.total_s / training_s)

    @property
    def at_once(self) -> int:
        """How many trainings start at the same time."""
        machine = self.snapshot.machine
        cores = 1.0 if machine is None or machine.cores is None else machine.cores
        return max(1, min(MOST_AT_ONCE, int(cores)))

    def most_trainings(self) -> int:
        """Return how many trainings fit into memory at the same time; at least three.

        Raises:
            TryError: not even three do.
        """
        free = MEMORY_PART * psutil.virtual_memory().available
        fits = int(free / self.memory_bytes) if self.memory_bytes else 1000
        for gpu in () if self.snapshot.machine is None else self.snapshot.machine.gpus:
            held = gpu.held_bytes
            if held is not None and held.max and gpu.total_bytes:
                fits = min(fits, int(gpu.total_bytes / held.max))
        if fits < 3:
            raise TryError("memory has no room for three trainings at a time, which a comparison needs")
        return fits

    def schedule(
        self, trainings: int, seconds: float, cycle: int = 1, most_rounds: int | None = None
    ) -> BlockSchedule | None:
        """Return what so many trainings can run in that time; None if it is too little to show anything.

        Several workers make several batches at about the same time, and then none for a while. So a block has whole
        cycles of ``cycle`` steps, as far as there is time: parts of cycles are either too fast or too slow.
        """
        assert self.snapshot.step is not None
        step_s, least = self.step_s, steps_of_a_block(self.step_s)
        whole = [steps_of_a_block(step_s, cycle, least_s) for least_s in (LONG_BLOCK_S, LEAST_BLOCK_S)]
        blocks = [*(whole if cycle > 1 else ()), least]
        warmup = max(LEAST_WARMUP, min(MOST_WARMUP, self.snapshot.step.warmup_count))
        startup_s = self.startup_s + max(self.snapshot.step.warmup_s, warmup * step_s)
        left_s = seconds - startup_s * ceil(trainings / self.at_once)
        steps = self.snapshot.steps - warmup - 1 if self.has_ended else None
        for block_steps in blocks:
            most = most_rounds or (ENOUGH_ROUNDS if block_steps >= 2 * least else MOST_ROUNDS)
            if steps is not None:
                fit = steps // FEWEST_ROUNDS
                whole_fit = 1 + (fit - 1) // cycle * cycle if fit > cycle else fit
                block_steps = max(2, min(block_steps, whole_fit))
                most = min(most, steps // block_steps)
            rounds = min(most, int(left_s / (trainings * (block_steps * step_s + SWITCH_S))))
            if rounds >= FEWEST_ROUNDS:
                return BlockSchedule(warmup, rounds, block_steps, step_s, startup_s)
        return None

    def why_no_schedule(self, budget_s: float) -> "TryError":
        """Return what to say where the budget has no schedule."""
        if self.schedule(3, 1e9) is None:
            return TryError(f"the program has {self.snapshot.steps} steps in all, too few to compare blocks of them")
        return TryError(
            f"fewer than {FEWEST_STEPS} steps of each training fit into {duration_text(budget_s)}: a step takes "
            f"{time_text(self.step_s)}, and the start {duration_text(self.startup_s)}; example: --budget "
            f"{enough_budget(self.step_s, self.startup_s)}"
        )


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
    return FirstRun.of(snapshot, memory_bytes, has_ended, is_interrupted), folder


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


def groups_of(names: Sequence[str], most: int) -> list[Sequence[str]]:
    """Return the changes in groups of nearly the same size, of which each fits into memory."""
    count = ceil(len(names) / most)
    size = max(1, ceil(len(names) / max(1, count)))
    return [names[begin : begin + size] for begin in range(0, len(names), size)]


def workers_that_would_do(snapshot: Snapshot, loader: LoaderStats | None) -> str | None:
    """Return how many workers would keep up with the training; None if that is unknown or does not matter."""
    measured = None if loader is None else batch_times(snapshot, loader)
    if loader is None or measured is None:
        return None
    now_s, using_s = measured
    if loader.num_workers == 0:  # both parts have the time in which the training had no CPU
        kept = 1 - cpu_loss(snapshot.machine).all
        now_s, using_s = kept * now_s, kept * using_s
    workers, is_cpu_known = loader.workers, True
    if loader.num_workers == 0 and loader.is_map_style is not False:  # another may repeat its data in each worker
        making_s = now_s - using_s
        is_cpu_known = loader.batch_cpu_avg_s is not None
        cpu_s = making_s if loader.batch_cpu_avg_s is None else loader.batch_cpu_avg_s
    elif workers is not None and workers.batches >= BATCHES_NEEDED and workers.batch_avg_s > workers.cpu_wait_avg_s:
        making_s, cpu_s = workers.batch_avg_s - workers.cpu_wait_avg_s, workers.cpu_avg_s
    else:
        return None
    if using_s <= 0 or now_s - using_s < LEAST_WAIT * now_s:
        return None
    needed = ceil(making_s / using_s)
    if needed <= (loader.num_workers or 0):  # they have another reason to be late
        return None
    text = "1 worker would keep up" if needed == 1 else f"{needed} workers would keep up"
    if needed > MOST_WORKERS:
        text = f"more than {MOST_WORKERS} workers would be needed to keep up"
    if not is_cpu_known and needed > 1:
        text += ", with a CPU each"
    text += f": a batch takes {time_text(making_s)} to make and {time_text(using_s)} to use"
    return text + _at_best(snapshot, cpu_s, using_s, "" if is_cpu_known else "if all of that is computing, ")


def _at_best(snapshot: Snapshot, cpu_s: float, using_s: float, condition: str) -> str:
    """Return the least time for a batch that the CPUs allow, as the end of a sentence; "" where they are enough."""
    machine = snapshot.machine
    if machine is None or not machine.cores:
        return ""
    cores = machine.cores / machine.local_ranks
    if cpu_s / cores <= using_s:
        return ""
    whose = f"{cores:g} CPU{'s' * (cores != 1)}{' a rank' * (machine.local_ranks > 1)}"
    return f"; {condition}{whose} would make one in {time_text(cpu_s / cores)} at best"
