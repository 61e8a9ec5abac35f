"""A session about one change of the user's: the program with it and without it, in turns."""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import takewhile
from math import ceil
from pathlib import Path
from typing import Final

from training_profiler.trials.child import SEED
from training_profiler.trials.first_run import FirstRun, TryError, run_first
from training_profiler.trials.launcher import Launcher
from training_profiler.trials.process import Interleaved, Outcome, TrialError, UnderWay, row_of
from training_profiler.trials.results import (
    FAILED,
    FASTER,
    NOT_SHOWN,
    NOT_TRIED,
    SLOWER,
    TOO_WIDE,
    UNDECIDED,
    Results,
    Row,
)
from training_profiler.trials.statistics import AGAIN, UNCHANGED, Wave, differ, why_undecided
from training_profiler.trials.treatment import facts_of
from training_profiler.trials.variants import Variant

CHANGED: Final = "changed"  # the training with the change
MOST_ROUNDS: Final = 600
PARTS: Final = 2  # with fresh processes each: one may be slower than another for all its life
LARGE: Final = 0.1  # of a step: where the interval is wider, nothing is decided
FEWEST_ROUNDS, LOOK_EVERY = 20, 10  # before a part may end, and between two looks at its intervals
MOST_OF_STARTS: Final = 0.15  # of the time, for the starts of one part; else there is only one
OF_ALL: Final = "the difference is that of all steps together, with rare, long ones such as those with a checkpoint"
LEFT_OUT: Final = "times leave out the waiting for CPUs that others had, {:.0%} of the time"
LEAST_LEFT_OUT: Final = 0.05  # that is said
NOISY: Final = "the training differs from itself; try again while the machine does less"
NO_SEED: Final = "the program sets no seed: all trainings began with the same random numbers"


@dataclass
class ChangeSession:
    """Compares a program with one change, ``changed``, and without it, the launcher's ``base``."""

    launcher: Launcher
    changed: Variant
    budget_s: float
    runs: Path  # folder for the run folder of the first run
    on_progress: Callable[[float, str], None] = lambda part, doing: None
    clock: Callable[[], float] = time.monotonic
    first: FirstRun | None = None
    """What the program without the change has shown; it runs under the profiler where that is not known."""
    folder: Path | None = None
    """The run folder, once the first run has ended."""
    under_way: UnderWay | None = None
    """How far the trainings have come, in an earlier session too, which this one then goes on with."""
    keep: Callable[[], None] = lambda: None
    """Called whenever some more rounds have run."""

    def run(self) -> Results:
        """Run both in turns and return what that shows; after Ctrl-C, as far as they came.

        Raises:
            TryError: the program without the change cannot be run, or not for long enough.
        """
        begin_s = self.clock()
        if self.first is None:
            self.first, self.folder = run_first(self.launcher, self.budget_s, self.runs, self.on_progress)
        first = self.first
        left_s = self.budget_s - (self.clock() - begin_s)
        under_way = self.under_way = self.under_way or self._begun(first, left_s)
        wave, starts_s = under_way.record, under_way.schedule.startup_s * ceil(len(under_way.outcomes) / first.at_once)
        parts = PARTS if not wave.done and starts_s <= MOST_OF_STARTS * left_s else 1
        is_interrupted = first.is_interrupted
        try:
            self._run_part(under_way, first.at_once, self.clock() + left_s / parts, lambda: _is_enough(wave, 1 / parts))
            if parts > 1:
                wanted = parts * wave.done
                self._run_part(under_way, first.at_once, begin_s + self.budget_s, lambda: wave.done >= wanted)
        except KeyboardInterrupt:
            is_interrupted = True
            wave.pause()
        except TrialError as error:
            raise TryError(f"{self.launcher.program.shown} failed without the change: {error}") from None
        finally:
            self.keep()
        return replace(
            self._results(under_way, facts_of(first.snapshot).cores),
            seconds=self.clock() - begin_s,
            steps=under_way.schedule.steps,
            is_interrupted=is_interrupted,
            part_in_steps=first.part_in_steps,
        )

    def _begun(self, first: FirstRun, left_s: float) -> UnderWay:
        loader = facts_of(first.snapshot).loader
        cycle = max(1, 0 if loader is None else loader.num_workers or 0)
        schedule = first.schedule(3, left_s, cycle, most_rounds=MOST_ROUNDS)
        if schedule is None:
            raise first.why_no_schedule(self.budget_s)
        return UnderWay.of(Wave.of([CHANGED], schedule.rounds), schedule, True)

    def _run_part(self, under_way: UnderWay, at_once: int, end_s: float, is_enough: Callable[[], bool]) -> None:
        """Run fresh processes in turns."""
        wave, base = under_way.record, self.launcher.base
        wave.futile.clear()  # no look ends a session about one change: it may be slower as well
        wave.shown.clear()
        Interleaved(
            under_way,
            lambda name: self.launcher.start((), under_way.schedule.warmup, self.changed if name == CHANGED else base),
            at_once,
            lambda part, what: self.on_progress(part, f"{self.changed.name} against {base.name}: {what}"),
            lambda: self.clock() > end_s or is_enough(),
            lambda: None if wave.done % LOOK_EVERY else self.keep(),
            has_cpu=self.first is not None
            and (facts_of(self.first.snapshot).cores or 0.0) >= 1,  # else a quota's waits
            is_own=True,
        ).run()

    def _results(self, under_way: UnderWay, cores: float | None) -> Results:
        wave, outcomes = under_way.record, under_way.outcomes
        changed, unchanged = outcomes[CHANGED], outcomes[UNCHANGED]
        row = row_of(Row(CHANGED, "", f"with {self.changed.name}", NOT_SHOWN), under_way, CHANGED)
        control = row_of(Row(AGAIN, "", f"{self.launcher.base.name}, again", NOT_SHOWN), under_way, AGAIN)
        is_noisy = control.effect is not None and control.effect.differs
        halves = (wave.effects(rounds).get(CHANGED) for rounds in (slice(wave.done // 2), slice(wave.done // 2, None)))
        parts = [each for each in halves if each is not None]
        claim = row.effect.claim(control.effect, parts) if row.effect and control.effect and parts else None
        effect, why = claim or row.effect, why_undecided(cores, changed.cpu, unchanged.cpu)
        if row.verdict in (FAILED, NOT_TRIED):
            row = replace(row, verdict=FAILED)
        elif effect is None:
            row = replace(row, verdict=UNDECIDED, reason="the session ended before both had run")
        elif is_noisy:
            row = replace(row, verdict=UNDECIDED, reason=NOISY)
        elif claim is not None and (claim.relative < 0 or why is None):
            row = replace(row, verdict=FASTER if claim.relative < 0 else SLOWER)
        elif why is not None or max(-effect.low, effect.high) > LARGE:
            row = replace(row, verdict=UNDECIDED, reason=why or TOO_WIDE)
        else:
            row = replace(row, verdict=NOT_SHOWN)
        notes = [f"{OF_ALL}; a typical step: {row.effect}"] * (effect is not row.effect)
        waited = unchanged.cpu.waited_s / max(unchanged.cpu.wall_s, 1e-9)
        notes += [LEFT_OUT.format(waited)] * (2 * wave.alone > wave.done and waited >= LEAST_LEFT_OUT)
        notes += [NO_SEED] * (unchanged.seed == SEED) + data_notes(changed, unchanged)
        if wave.has_ended and wave.block_s[CHANGED][-1] is None and wave.block_s[UNCHANGED][-1] is not None:
            notes.append(f"with the change, the training ended by itself after {len(changed.losses)} steps")
        return Results(
            self.launcher.program.shown,
            0.0,
            (replace(row, effect=effect),),
            unchanged_step_s=wave.step_s(UNCHANGED),
            control=control,
            notes=tuple(notes),
        )


def _is_enough(wave: Wave, part: float) -> bool:
    """Return whether this part of a session has shown its share: that depends on the noise, not on the difference."""
    if wave.done < FEWEST_ROUNDS or wave.done % LOOK_EVERY:
        return False
    effect = wave.effects().get(CHANGED)
    return effect is not None and effect.is_narrow(part)


def data_notes(changed: Outcome, unchanged: Outcome) -> list[str]:
    """Return what differs in the data of two trainings, as far as it is known."""
    notes = []
    pairs = list(zip(changed.prints, unchanged.prints, strict=False))
    same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
    if same < len(pairs):
        notes.append(f"the data differs from sample {same + 1} on: other samples, or another order")
    if differ(changed.samples, unchanged.samples):
        notes.append(
            f"a step has {changed.samples:g} samples with the change and {unchanged.samples:g} without it, so times of "
            "samples are compared"
        )
    return notes
