"""Finds the commit since which a training is slower: commits run in turns against the good one, which cancels drift."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from math import expm1, log1p, sqrt
from typing import Final, NamedTuple

from training_profiler.model.snapshot import OTHER, PROFILER, Snapshot
from training_profiler.trials.results import FAILED, SLOWER, TOO_WIDE, UNDECIDED, Row
from training_profiler.trials.statistics import Effect

SLOW, FAST, UNCLEAR, BROKEN = "slow", "as fast as the good one", "undecided", "does not run"
SPLIT: Final = 0.5  # of the whole slowdown, in logarithms: a commit above it has the change
MOST_TRIES: Final = 3  # of a commit that decides nothing
LEAST_PART: Final = 0.6  # of the whole slowdown, that the commit itself has to show against the one before it


class Step(NamedTuple):
    """One commit that was tried, and what it showed against the good one."""

    commit: str
    state: str
    effect: Effect | None = None
    reason: str = ""  # why it does not run


@dataclass
class Bisection:
    """What a search through the commits after a good one has found."""

    commits: Sequence[str]  # the oldest first; the last one is the bad one
    good: str
    compare: Callable[[str, str], Row]  # a commit against one before it
    on_step: Callable[[int, str], None] = lambda number, commit: None
    steps: list[Step] = field(default_factory=list)
    whole: Row | None = None  # the bad commit against the good one
    own: Row | None = None  # the commit that was found against the one before it
    suspects: Sequence[str] = ()  # one, or several where those between them cannot be separated; none if none is slower

    def run(self) -> None:
        """Search; ``suspects`` then has the commits of which one is the first slow one."""
        self.whole = self._try(self.commits[-1])
        if self.steps[-1].state != SLOW:
            return
        good, bad, left_out = -1, len(self.commits) - 1, set[int]()
        while middle := [at for at in range(good + 1, bad) if at not in left_out]:
            at = middle[len(middle) // 2]
            self._try(self.commits[at])
            state = self.steps[-1].state
            good, bad = (at if state == FAST else good), (at if state == SLOW else bad)
            left_out |= {at} if state in (UNCLEAR, BROKEN) else set()
        self.suspects = self.commits[good + 1 : bad + 1]
        if len(self.suspects) > 1:
            return
        before = self.commits[good] if good >= 0 else self.good
        self.on_step(len(self.steps), bad_name := self.suspects[0])
        self.own = self.compare(bad_name, before)
        if self._is_confirmed(self.own.effect):
            self.own = replace(self.own, verdict=SLOWER)
        else:
            self.suspects = ()

    def _try(self, commit: str) -> Row:
        """Compare a commit with the good one, again where that decides nothing."""
        effects: list[Effect] = []
        for _ in range(MOST_TRIES):
            self.on_step(len(self.steps), commit)
            row = self.compare(commit, self.good)
            effects += [row.effect] if row.effect is not None and row.effect.low > -1 else []  # else without a bound
            row = replace(row, effect=together(effects)) if effects else row
            state = self._state(row)
            if state != UNCLEAR:
                break
        self.steps.append(Step(commit, state, row.effect, row.reason if state in (UNCLEAR, BROKEN) else ""))
        return row

    def _state(self, row: Row) -> str:
        if row.verdict == FAILED:
            return BROKEN
        if row.effect is None or (row.verdict == UNDECIDED and row.reason != TOO_WIDE):
            return UNCLEAR
        if self.whole is None or self.whole.effect is None:  # this is the bad one
            return SLOW if row.effect.differs and row.effect.relative > 0 else FAST
        border = SPLIT * self.whole.effect.relative
        if row.effect.low > border:
            return SLOW
        return FAST if row.effect.high < border else UNCLEAR

    def _is_confirmed(self, effect: Effect | None) -> bool:
        assert self.whole is not None
        assert self.whole.effect is not None
        least = LEAST_PART * self.whole.effect.relative
        return effect is not None and effect.low > 0 and effect.high >= least


def together(effects: Sequence[Effect]) -> Effect:
    """Return the effect that several independent measurements of one change show together."""
    if len(effects) == 1:
        return effects[0]
    weights = [1 / max(1e-12, log1p(each.high) - log1p(each.low)) ** 2 for each in effects]
    middle = sum(weight * log1p(each.relative) for weight, each in zip(weights, effects, strict=True)) / sum(weights)
    half = 0.5 / sqrt(sum(weights))
    rounds = sum(each.rounds for each in effects)
    return Effect(expm1(middle), expm1(middle - half), expm1(middle + half), effects[0].p_value, rounds)


def slower_section(before: Snapshot, after: Snapshot) -> tuple[str, float] | None:
    """Return the section that takes the most seconds more of a step, and how many; None where none does."""
    if before.step is None or after.step is None:
        return None
    names = ({*before.sections, *after.sections} | {OTHER}) - {PROFILER}
    more = {name: _of_step_s(after, name) - _of_step_s(before, name) for name in names}
    name = max(more, key=lambda name: more[name])
    return (name, more[name]) if more[name] > 0 else None


def _of_step_s(snapshot: Snapshot, name: str) -> float:
    section, step = snapshot.sections.get(name), snapshot.step
    return 0.0 if section is None or step is None or not step.count else section.step_self_s / step.count
