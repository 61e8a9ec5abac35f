"""A session of trials: a first run that shows what is worth trying, the trials, and fresh ones of all that helped."""

import importlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import ceil
from pathlib import Path
from typing import Any, Final

import psutil

from training_profiler.trials.child import SEED
from training_profiler.trials.disk import DiskSpaceError
from training_profiler.trials.facts import ProgramFacts, facts_of
from training_profiler.trials.first_run import FEWEST_STEPS, FirstRun, TryError, run_first
from training_profiler.trials.interleaved import Interleaved, Outcome, Schedule, steps_of_a_block
from training_profiler.trials.launcher import Launcher
from training_profiler.trials.losses import compare_losses
from training_profiler.trials.process import TrialError
from training_profiler.trials.results import (
    FAILED,
    FASTER,
    NO_VERDICT,
    NOT_CONFIRMED,
    NOT_SHOWN,
    NOT_TRIED,
    SLOWER,
    Results,
    Row,
    best_of_each,
)
from training_profiler.trials.statistics import (
    AGAIN,
    FEWEST_ROUNDS,
    GAIN_ERROR,
    SCREEN_ERROR,
    SCREEN_LOOKS,
    UNCHANGED,
    Wave,
)
from training_profiler.trials.treatment import Losses, Treatment
from training_profiler.trials.workers import workers_that_would_do
from training_profiler.units import duration_text

TOGETHER, TOGETHER_LABEL = "all together", "all that helped, together"
MOST_ROUNDS: Final = 30
SWITCH_S: Final = 0.03  # between two blocks
LEAST_WARMUP, MOST_WARMUP = 3, 20  # steps
SCREEN_PART: Final = 0.6  # of the budget that is left after the first run; fresh trials take the rest
MEMORY_PART: Final = 0.7  # of what is free, for the trainings that wait
MOST_AT_ONCE: Final = 4  # trainings that start at the same time
NUMERICS: Final = "changes numerics"


@dataclass(frozen=True)
class Wishes:
    """What the user asked for."""

    budget_s: float
    only: tuple[str, ...] = ()  # families or names of changes
    tries_all: bool = False
    numerics: bool = False  # whether changes of the numerics may be part of all together
    total_steps: int | None = None  # of the whole training


class TrialSession:
    """Tries changes on one program.

    Args:
        launcher: starts its trainings.
        table: module that has ``TREATMENTS``, ``EXCLUSIVE`` and ``suggested``.
        wishes: of the user.
        runs: folder for the run folder of the first run.
        on_progress: called with the part that is done, and with what is under way.
        clock: in s.
    """

    def __init__(
        self,
        launcher: Launcher,
        table: str,
        wishes: Wishes,
        runs: Path,
        on_progress: Callable[[float, str], None] = lambda part, doing: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._launcher, self._wishes, self._runs = launcher, wishes, runs
        module = importlib.import_module(table)
        self._treatments: tuple[Treatment, ...] = module.TREATMENTS
        self._exclusive: Sequence[Sequence[str]] = module.EXCLUSIVE
        self._suggested: Callable[[Any, ProgramFacts], list[Treatment]] = module.suggested
        self._on_progress, self._clock = on_progress, clock
        self._begin_s = clock()
        self._rows: dict[str, Row] = {}
        self._control: Row | None = None
        self._together: Row | None = None
        self._together_names: tuple[str, ...] = ()
        self._unchanged_s: float | None = None
        self._steps = 0
        self._notes: list[str] = []
        self._is_interrupted = False
        self.folder: Path | None = None
        """The run folder, once the first run has ended."""

    def run(self) -> Results:
        """Try the changes and return what they bring; after Ctrl-C, the results so far.

        Raises:
            TryError: nothing can be tried on this program.
            DiskSpaceError: it writes too much for any result.
        """
        first, self.folder = run_first(self._launcher, self._wishes.budget_s, self._runs, self._on_progress)
        try:
            self._try(first, facts_of(first.snapshot))
        except KeyboardInterrupt:
            self._is_interrupted = True
        except (TryError, DiskSpaceError) as error:
            if not any(row.effect for row in self._rows.values()):
                raise
            self._is_interrupted |= isinstance(error, DiskSpaceError)
            self._notes.append(str(error))
        self._notes += [f"left behind, and not removed: {left}" for left in self._launcher.left()]
        return self._results()

    def _results(self) -> Results:
        return Results(
            self._launcher.program.shown,
            self._clock() - self._begin_s,
            tuple(self._rows.values()),
            self._unchanged_s,
            self._control,
            self._together,
            self._together_names,
            self._steps,
            self._wishes.total_steps,
            self._is_interrupted,
            tuple(dict.fromkeys(self._notes)),
        )

    @property
    def _left_s(self) -> float:
        return self._wishes.budget_s - (self._clock() - self._begin_s)

    def _try(self, first: FirstRun, facts: ProgramFacts) -> None:
        chosen = self._choose(first, facts)
        workers = workers_that_would_do(first.snapshot, facts.loader)
        if workers is not None:
            self._notes.append(workers)
        groups = _groups(chosen, most_trainings(first) - 2)
        for number, group in enumerate(groups):
            if self._is_interrupted:
                return
            seconds = SCREEN_PART * self._left_s / (len(groups) - number)
            names, schedule = self._fit([each.name for each in group], first, seconds)
            self._leave_out([each for each in group if each.name not in names])
            if schedule is not None:
                self._screen([each for each in group if each.name in names], schedule, first, facts)
        self._confirm([each for each in chosen if self._is_winner(each.name)], first)

    def _choose(self, first: FirstRun, facts: ProgramFacts) -> list[Treatment]:
        wanted = set(self._wishes.only)
        if wanted:
            candidates = [each for each in self._treatments if {each.family, each.name} & wanted]
        elif self._wishes.tries_all:
            candidates = list(self._treatments)
        else:
            candidates = self._suggested(first.findings, facts)
        reasons = {each.name: each.reason_not(facts) for each in candidates}
        for each in candidates:
            if reasons[each.name] is not None:
                self._put(each, facts, verdict=NOT_TRIED, reason=str(reasons[each.name]))
        chosen = [each for each in candidates if reasons[each.name] is None]
        if not chosen:
            self._notes.append("nothing was tried: no change that is known here applies to this program")
        return chosen

    def _put(self, treatment: Treatment, facts: ProgramFacts | None = None, **values: Any) -> None:
        known = self._rows.get(treatment.name)
        if known is None:
            edits = treatment.edit(facts.calls) if facts is not None else []
            known = Row(
                treatment.name,
                treatment.family,
                treatment.label,
                NOT_TRIED,
                where=next((edit.call.site.place for edit in edits), ""),
                is_ceiling=treatment.ceiling,
                changes_numerics=treatment.losses is Losses.CHANGES,
            )
        self._rows[treatment.name] = replace(known, **values)

    def _leave_out(self, treatments: Sequence[Treatment]) -> None:
        minutes = max(2, round(2 * self._wishes.budget_s / 60))
        for each in treatments:
            self._put(each, verdict=NOT_TRIED, reason=f"no time left; example: --budget {minutes}m")

    def _fit(self, names: Sequence[str], first: FirstRun, seconds: float) -> tuple[list[str], Schedule | None]:
        """Return as many of the changes as there is time for, the first ones, and their schedule if there are any."""
        at_once = at_once_of(first)
        for count in range(len(names), 0, -1):
            schedule = schedule_of(first, count + 2, at_once, seconds)
            if schedule is not None:
                return list(names[:count]), schedule
        if not self._rows or all(row.verdict == NOT_TRIED for row in self._rows.values()):
            raise TryError(
                f"fewer than {FEWEST_STEPS} steps of each training fit into {duration_text(self._wishes.budget_s)}: a "
                f"step takes {duration_text(first.step_s)}, and the start {duration_text(first.startup_s)}; example: "
                f"--budget {max(2, ceil(3 * self._wishes.budget_s / 60))}m"
            )
        return [], None

    def _run_wave(
        self, wave: Wave, changes: dict[str, Sequence[Treatment]], schedule: Schedule, at_once: int, doing: str
    ) -> Interleaved:
        interleaved = Interleaved(
            lambda name: self._launcher.start(changes.get(name, ()), schedule.warmup),
            schedule,
            wave,
            at_once,
            lambda part, what: self._on_progress(part, f"{doing}: {what}"),
            lambda: self._left_s <= 0,
        )
        try:
            interleaved.run()
        except KeyboardInterrupt:
            self._is_interrupted = True
            wave.end()
        except DiskSpaceError as error:
            if not wave.done:
                raise
            self._is_interrupted = True
            self._notes.append(str(error))
            wave.end()
        except TrialError as error:
            raise TryError(f"{self._launcher.program.shown} failed without a change: {error}") from None
        finally:
            self._steps = max(self._steps, schedule.steps)
            self._unchanged_s = wave.step_s(UNCHANGED) or self._unchanged_s
        if interleaved.outcomes[UNCHANGED].seed == SEED:
            self._notes.append("the program sets no seed: all trials began with the same random numbers")
        return interleaved

    def _screen(
        self, treatments: Sequence[Treatment], schedule: Schedule, first: FirstRun, facts: ProgramFacts
    ) -> None:
        """Run each change beside the unchanged training, and keep those that seem to help for fresh trials."""
        wave = Wave([each.name for each in treatments], schedule.rounds, SCREEN_ERROR, SCREEN_LOOKS)
        for each in treatments:
            self._put(each, facts, reason="the session ended before")
        changes: dict[str, Sequence[Treatment]] = {each.name: (each,) for each in treatments}
        interleaved = self._run_wave(wave, changes, schedule, at_once_of(first), f"{len(treatments)} changes")
        self._control = _row_of(Row(AGAIN, "", AGAIN, NOT_SHOWN), wave, interleaved, AGAIN)
        is_noisy = self._is_noisy()
        for each in treatments:
            row = _row_of(self._rows[each.name], wave, interleaved, each.name)
            if is_noisy and row.verdict not in (FAILED, NOT_TRIED):
                row = replace(row, verdict=NO_VERDICT)
            elif each.name in wave.shown:
                row = replace(row, verdict=NOT_CONFIRMED)  # until fresh trials show it again
            self._rows[each.name] = row

    def _is_noisy(self) -> bool:
        control = self._control
        is_noisy = control is not None and control.effect is not None and control.effect.differs
        if is_noisy:
            self._notes.append(
                "no verdict: the unchanged training differs from itself; try again while the machine does less"
            )
        return is_noisy

    def _is_winner(self, name: str) -> bool:
        row = self._rows.get(name)
        return row is not None and row.verdict == NOT_CONFIRMED

    def _confirm(self, winners: Sequence[Treatment], first: FirstRun) -> None:
        """Run fresh trainings with each change that seemed to help, and with all of them: those decide."""
        if not winners or self._is_interrupted:
            return
        by_name = {each.name: each for each in winners}
        changes: dict[str, Sequence[Treatment]] = {each.name: (each,) for each in winners}
        rows = [self._rows[name] for name in by_name]
        can_be_had = [row for row in rows if not row.is_ceiling and (self._wishes.numerics or not row.changes_numerics)]
        best = best_of_each(can_be_had, self._exclusive)
        if len(best) > 1:
            changes = {TOGETHER: tuple(by_name[row.name] for row in best), **changes}
        names, schedule = self._fit(list(changes), first, self._left_s)
        if schedule is None:
            self._notes.append("no time was left for fresh trials, so no gain is confirmed")
            return
        wave = Wave(names, schedule.rounds, GAIN_ERROR)
        interleaved = self._run_wave(wave, changes, schedule, at_once_of(first), "fresh trials of what helped")
        self._control = _row_of(Row(AGAIN, "", AGAIN, NOT_SHOWN), wave, interleaved, AGAIN)
        is_noisy = self._is_noisy()
        for name in names:
            row = self._rows.get(name, Row(TOGETHER, "", TOGETHER_LABEL, NOT_SHOWN))
            row = _row_of(row, wave, interleaved, name)
            verdict = NO_VERDICT if is_noisy else FASTER if name in wave.shown else NOT_CONFIRMED
            row = replace(row, verdict=row.verdict if row.verdict == FAILED else verdict)
            if name == TOGETHER:
                self._together, self._together_names = row, tuple(each.name for each in best)
            else:
                self._rows[name] = row


def _row_of(row: Row, wave: Wave, interleaved: Interleaved, name: str) -> Row:
    """Return the row with what a wave has shown of its training."""
    outcome, unchanged = interleaved.outcomes[name], interleaved.outcomes[UNCHANGED]
    if outcome.failure is not None:
        return replace(row, verdict=FAILED, reason=outcome.failure)
    effect = wave.effects().get(name)
    if effect is None:
        return row
    is_slower = effect.differs and effect.relative > 0
    return replace(
        row,
        verdict=SLOWER if is_slower else NOT_SHOWN,
        reason="",
        step_s=wave.step_s(name),
        effect=effect,
        losses=compare_losses(outcome.losses, unchanged.losses, interleaved.outcomes[AGAIN].losses),
        warmup_s=_longer_warmup(outcome, unchanged),
    )


def _longer_warmup(outcome: Outcome, unchanged: Outcome) -> float:
    if outcome.warmup_s is None or unchanged.warmup_s is None:
        return 0.0
    return max(0.0, outcome.warmup_s - unchanged.warmup_s)


def at_once_of(first: FirstRun) -> int:
    """Return how many trainings start at the same time."""
    machine = first.snapshot.machine
    cores = 1.0 if machine is None or machine.cores is None else machine.cores
    return max(1, min(MOST_AT_ONCE, int(cores)))


def most_trainings(first: FirstRun) -> int:
    """Return how many trainings fit into memory at the same time; at least three.

    Raises:
        TryError: not even three do.
    """
    free = MEMORY_PART * psutil.virtual_memory().available
    fits = int(free / first.memory_bytes) if first.memory_bytes else 1000
    for gpu in () if first.snapshot.machine is None else first.snapshot.machine.gpus:
        held = gpu.held_bytes
        if held is not None and held.max and gpu.total_bytes:
            fits = min(fits, int(gpu.total_bytes / held.max))
    if fits < 3:
        raise TryError("memory has no room for three trainings at a time, which a comparison needs")
    return fits


def _groups(treatments: Sequence[Treatment], most: int) -> list[Sequence[Treatment]]:
    count = ceil(len(treatments) / most)
    size = ceil(len(treatments) / max(1, count))
    return [treatments[begin : begin + size] for begin in range(0, len(treatments), max(1, size))]


def schedule_of(first: FirstRun, trainings: int, at_once: int, seconds: float) -> Schedule | None:
    """Return what so many trainings can run in that time; None if it is too little to show anything."""
    assert first.snapshot.step is not None
    step_s = first.step_s
    warmup = max(LEAST_WARMUP, min(MOST_WARMUP, first.snapshot.step.warmup_count))
    startup_s = first.startup_s + max(first.snapshot.step.warmup_s, warmup * step_s)
    block_steps = steps_of_a_block(step_s)
    steps = first.snapshot.steps - warmup - 1 if first.has_ended else None
    if steps is not None:
        block_steps = max(2, min(block_steps, steps // FEWEST_ROUNDS))
    left_s = seconds - startup_s * ceil(trainings / at_once)
    rounds = int(left_s / (trainings * (block_steps * step_s + SWITCH_S)))
    rounds = min(MOST_ROUNDS, rounds, steps // block_steps if steps is not None else MOST_ROUNDS)
    if rounds < FEWEST_ROUNDS:
        return None
    return Schedule(warmup, rounds, block_steps, step_s, startup_s)
