"""A session of trials: a first run that shows what is worth trying, the trials, and fresh ones of all that helped."""

import importlib
import time
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from math import lcm
from pathlib import Path
from typing import Any, Final

from training_profiler.base.errors import RunFolderError
from training_profiler.storage.run_folder import masked
from training_profiler.storage.run_reader import read_run
from training_profiler.trials.child import SEED
from training_profiler.trials.first_run import (
    SCREEN_PART,
    FirstRun,
    TryError,
    groups_of,
    run_first,
    workers_that_would_do,
)
from training_profiler.trials.launcher import DiskSpaceError, Launcher
from training_profiler.trials.process import Interleaved, TrialError, UnderWay, row_of
from training_profiler.trials.results import (
    FAILED,
    FASTER,
    NO_VERDICT,
    NOISY,
    NOT_CONFIRMED,
    NOT_SHOWN,
    NOT_TRIED,
    SLOWER,
    UNDECIDED,
    Results,
    Row,
    as_data,
    best_of_each,
    from_data,
)
from training_profiler.trials.state import SCHEMA, Identity, Progress, SessionState, Wishes, held, save_state
from training_profiler.trials.statistics import (
    AGAIN,
    GAIN_ERROR,
    SCREEN_ERROR,
    SCREEN_LOOKS,
    UNCHANGED,
    BlockSchedule,
    Wave,
    why_undecided,
)
from training_profiler.trials.treatment import Treatment, TrialFacts, facts_of

TOGETHER, TOGETHER_LABEL = "all together", "all that helped, together"
SLOWER_WITH_WORKERS: Final = "; steps are slower with workers all the same, as taking a batch over takes time, too"


@dataclass(eq=False)
class TrialSession:
    """Tries changes on one program, and keeps in the run folder how far it has come."""

    launcher: Launcher  # starts its trainings
    table: str  # module that has ``TREATMENTS``, ``EXCLUSIVE`` and ``suggested``
    wishes: Wishes  # of the user
    runs: Path  # folder for the run folder of the first run
    _: KW_ONLY
    on_progress: Callable[[float, str], None] = lambda part, doing: None  # gets the part that is done, and what follows
    clock: Callable[[], float] = time.monotonic  # in s
    identity: Identity = field(default_factory=Identity)  # of the program and the machine, for a session that goes on
    folder: Path | None = field(default=None, init=False)
    """The run folder, once the first run has ended."""

    def __post_init__(self) -> None:
        module = importlib.import_module(self.table)
        self._treatments: dict[str, Treatment] = {each.name: each for each in module.TREATMENTS}
        self._exclusive: Sequence[Sequence[str]] = module.EXCLUSIVE
        self._suggested: Callable[[Any, TrialFacts], list[Treatment]] = module.suggested
        self._begin_s = self.clock()
        self._before_s = 0.0  # that earlier parts of the session took
        self._rows: dict[str, Row] = {}
        self._found = Results(self.launcher.program.shown, 0.0, ())  # without what ``_results`` adds
        self._notes: list[str] = []
        self._workers: str | None = None
        self._is_interrupted = False
        self._progress = Progress()
        self._first: FirstRun
        self._facts: TrialFacts

    def run(self) -> Results:
        """Try the changes and return what they bring; after Ctrl-C, the results so far.

        Raises:
            TryError: nothing can be tried on this program.
            DiskSpaceError: it writes too much for any result.
        """
        first, folder = run_first(self.launcher, self.wishes.budget_s, self.runs, self.on_progress)
        return self._run(first, folder, is_new=True)

    def resume(self, folder: Path, state: SessionState) -> Results:
        """Go on with a session, and return what it has shown in all its parts.

        What was confirmed, refuted or failed stays so: what is tried until it helps does so by chance.

        Raises:
            TryError, DiskSpaceError: as ``run`` does.
            RunFolderError: the first run cannot be read, or another process goes on with the session.
        """
        if not set(state.progress.chosen) <= set(self._treatments):
            raise RunFolderError(f"{folder}: the session has changes of another version of training-profiler")
        snapshot, self._progress = read_run(folder), state.progress
        first = FirstRun.of(snapshot, state.memory_bytes, state.has_ended)
        before = from_data(state.results)
        self._before_s, self._rows = before.seconds, {row.name: row for row in before.rows}
        self._found = replace(before, program=self._found.program)
        return self._run(first, folder, is_new=False)

    def _run(self, first: FirstRun, folder: Path, is_new: bool) -> Results:
        self._first, self._facts, self.folder = first, facts_of(first.snapshot), folder
        try:
            with held(folder):
                self._try(is_new)
        except KeyboardInterrupt:
            self._is_interrupted = True
        except (TryError, DiskSpaceError) as error:
            if not any(row.effect for row in self._rows.values()):
                raise
            self._is_interrupted |= isinstance(error, DiskSpaceError)
            self._notes.append(str(error))
        self._notes += [f"left behind, and not removed: {left}" for left in self.launcher.left()]
        self._save()
        return self._results()

    def _results(self) -> Results:
        notes = [NOISY] if any(row.verdict == NO_VERDICT for row in self._rows.values()) else []
        if self._workers is not None:
            tried = [row.verdict for row in self._rows.values() if row.family == "num_workers"]
            notes.append(self._workers + SLOWER_WITH_WORKERS * (SLOWER in tried and FASTER not in tried))
        return replace(
            self._found,
            seconds=self._before_s + self.clock() - self._begin_s,
            rows=tuple(self._rows.values()),
            total_steps=self.wishes.total_steps,
            part_in_steps=self._first.part_in_steps,
            is_interrupted=self._is_interrupted,
            notes=tuple(dict.fromkeys([*notes, *self._notes])),
            remaining=tuple(self._progress.left),
        )

    def _save(self) -> None:
        assert self.folder is not None
        program, first = self.launcher.program, self._first
        of_run = masked(program.words), program.is_python, self.wishes, first.memory_bytes, first.has_ended
        state = SessionState(SCHEMA, self.identity, *of_run, as_data(self._results()), self._progress)
        try:
            save_state(self.folder, state)
        except OSError as error:
            self._notes.append(f"the session cannot go on later: {error}")

    @property
    def _left_s(self) -> float:
        return self.wishes.budget_s - (self.clock() - self._begin_s)

    def _try(self, is_new: bool) -> None:
        first, progress = self._first, self._progress
        if is_new:
            progress.choose(self._choose())
        if is_new and first.is_interrupted:
            self._notes.append("stopped before a change was tried; training-profiler report shows the unchanged run")
            raise KeyboardInterrupt
        self._workers = workers_that_would_do(first.snapshot, self._facts.loader)
        if progress.under_way is not None:
            self._run_side_by_side(progress.under_way)
        chosen = [name for name in progress.chosen if name not in progress.screened]
        groups = [] if progress.under_way is not None else groups_of(chosen, first.most_trainings() - 2)
        for number, group in enumerate(groups):
            if self._is_interrupted:
                return
            if progress.under_way is not None:  # the time is up
                self._leave_out(group)
                continue
            seconds = SCREEN_PART * self._left_s / (len(groups) - number)
            names, schedule = self._fit(group, seconds)
            self._leave_out(group[len(names) :])
            if schedule is not None:
                for name in names:
                    self._put(name, has_edits=True, reason="the session ended before")
                wave = Wave.of(names, schedule.rounds, SCREEN_ERROR, SCREEN_LOOKS)
                self._run_side_by_side(UnderWay.of(wave, schedule))
        self._confirm()

    def _choose(self) -> list[str]:
        """Return the names of the changes that are worth trying and apply; the others get a row with the reason."""
        wanted = set(self.wishes.only)
        candidates = list(self._treatments.values())
        if wanted:
            candidates = [each for each in candidates if {each.family, each.name} & wanted]
        elif not self.wishes.tries_all:
            candidates = self._suggested(self._first.findings, self._facts)
        reasons = {each.name: each.reason_not(self._facts) for each in candidates}
        for name, reason in reasons.items():
            if reason is not None:
                self._put(name, has_edits=True, verdict=NOT_TRIED, reason=reason)
        chosen = [name for name, reason in reasons.items() if reason is None]
        if not chosen:
            self._notes.append("nothing was tried: no change that is known here applies to this program")
        return chosen

    def _put(self, name: str, has_edits: bool = False, **values: Any) -> None:
        known = self._rows.get(name)
        if known is None:
            treatment = self._treatments[name]
            edits = treatment.edit(self._facts.calls) if has_edits else []
            known = Row(
                name,
                treatment.family,
                treatment.label,
                NOT_TRIED,
                where=next((edit.call.site.place for edit in edits), ""),
                is_ceiling=treatment.ceiling,
                changes_numerics=treatment.changes_numerics,
            )
        self._rows[name] = replace(known, **values)

    def _leave_out(self, names: Sequence[str]) -> None:
        minutes = max(2, round(2 * self.wishes.budget_s / 60))
        for name in names:
            self._put(name, verdict=NOT_TRIED, reason=f"no time left; example: --budget {minutes}m")

    def _fit(self, names: Sequence[str], seconds: float) -> tuple[list[str], BlockSchedule | None]:
        """Return as many of the changes as there is time for, the first ones, and their schedule if there are any."""
        first, loader = self._first, self._facts.loader
        own = 1 if loader is None else max(1, loader.num_workers or 0)
        for count in range(len(names), 0, -1):
            cycle = lcm(own, *(self._treatments[name].cycle for name in names[:count] if name != TOGETHER))
            schedule = first.schedule(count + 2, seconds, cycle)
            if schedule is not None:
                return list(names[:count]), schedule
        if not self._rows or all(row.verdict == NOT_TRIED for row in self._rows.values()):
            raise first.why_no_schedule(self.wishes.budget_s)
        return [], None

    def _run_side_by_side(self, under_way: UnderWay) -> None:
        """Run trainings in turns until their differences are known, from where they have come to."""
        wave, schedule, progress = under_way.record, under_way.schedule, self._progress
        doing = "fresh trials of what helped" if under_way.is_fresh else f"{len(wave.changes)} changes"
        treatments = {name: [each] for name, each in self._treatments.items()}
        treatments |= {UNCHANGED: [], AGAIN: [], TOGETHER: [self._treatments[each] for each in under_way.together]}
        interleaved = Interleaved(
            under_way,
            lambda name: self.launcher.start(treatments[name], schedule.warmup),
            self._first.at_once,
            lambda part, what: self.on_progress(part, f"{doing}: {what}"),
            lambda: self._left_s <= 0,
            lambda: self._keep(under_way),
        )
        try:
            interleaved.run()
        except KeyboardInterrupt:
            self._is_interrupted = True
            wave.pause()
        except DiskSpaceError as error:
            if not wave.done:
                raise
            self._is_interrupted = True
            self._notes.append(str(error))
            wave.pause()
        except TrialError as error:
            raise TryError(f"{self.launcher.program.shown} failed without a change: {error}") from None
        finally:
            steps = max(self._found.steps, schedule.steps)
            unchanged_step_s = wave.step_s(UNCHANGED) or self._found.unchanged_step_s
            self._found = replace(self._found, steps=steps, unchanged_step_s=unchanged_step_s)
        if under_way.outcomes[UNCHANGED].seed == SEED:
            self._notes.append("the program sets no seed: all trials began with the same random numbers")
        self._take(under_way)
        self._keep(under_way)
        if not wave.open:
            may_help = [] if under_way.is_fresh else wave.changes
            # Neither is refuted; fresh trials without a verdict have spent their error, as they may have seen the gain.
            undecided = (UNDECIDED,) if under_way.is_fresh else (UNDECIDED, NO_VERDICT)
            left = {name for name, row in self._rows.items() if row.verdict in undecided and name in wave.changes}
            decided = [name for name in wave.changes if name not in left]
            unspent = wave.error * len(left) / len(set(wave.changes) - {TOGETHER}) if under_way.is_fresh else 0.0
            progress.end(decided, [name for name in may_help if self._rows[name].verdict == NOT_CONFIRMED], unspent)

    def _keep(self, under_way: UnderWay) -> None:
        self._progress.keep(under_way)
        self._save()

    def _take(self, under_way: UnderWay) -> None:
        """Take what trainings side by side have shown into the rows of the table."""
        wave = under_way.record
        control = row_of(Row(AGAIN, "", AGAIN, NOT_SHOWN), under_way, AGAIN)
        is_noisy = control.effect is not None and control.effect.differs
        if control.effect is not None:  # else these trainings have not run a round yet
            self._found = replace(self._found, control=control)
        for name in wave.changes:
            row = self._rows.get(name, Row(TOGETHER, "", TOGETHER_LABEL, NOT_SHOWN))
            row = row_of(row, under_way, name)
            if row.verdict in (FAILED, NOT_TRIED):
                pass
            elif is_noisy:
                row = replace(row, verdict=NO_VERDICT)
            elif under_way.is_fresh:
                row = replace(row, verdict=FASTER if name in wave.shown else NOT_CONFIRMED)
            elif name in wave.shown:
                row = replace(row, verdict=NOT_CONFIRMED)  # until fresh trials show it again
            if row.verdict in (SLOWER, NOT_SHOWN) or (under_way.is_fresh and row.verdict == NOT_CONFIRMED):
                why = why_undecided(self._facts.cores, *(under_way.outcomes[each].cpu for each in (name, UNCHANGED)))
                row = row if why is None else replace(row, verdict=UNDECIDED, reason=why)
            if name == TOGETHER and (row.effect is not None or row.verdict == FAILED):
                self._found = replace(self._found, together=row, together_names=tuple(under_way.together))
            elif name != TOGETHER:
                self._rows[name] = row

    def _confirm(self) -> None:
        """Run fresh trainings with each change that seemed to help, and with all of them: those decide."""
        progress = self._progress
        if not progress.winners or progress.under_way is not None or self._is_interrupted:
            return
        helped = [name for name, row in self._rows.items() if row.verdict == FASTER]
        rows = [self._rows[name] for name in (*helped, *progress.winners)]
        can_be_had = [row for row in rows if not row.is_ceiling and (self.wishes.numerics or not row.changes_numerics)]
        best = [row.name for row in best_of_each(can_be_had, self._exclusive)]
        wanted = [TOGETHER] if len(best) > 1 and set(best) != set(self._found.together_names) else []
        names, schedule = self._fit([*wanted, *progress.winners], self._left_s)
        if schedule is None:
            self._notes.append("no time was left for fresh trials, so no gain is confirmed")
            return
        wave = Wave.of(names, schedule.rounds, progress.error_for(names, GAIN_ERROR))
        self._run_side_by_side(UnderWay.of(wave, schedule, True, best if TOGETHER in names else []))
