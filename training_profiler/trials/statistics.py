"""What interleaved blocks of steps show about changes: intervals, several changes at once, and when to stop.

All trainings of a session run in rounds: in each round every one of them runs one block of the same steps, in random
order. Two of them are unchanged. A change is measured by its blocks against the mean of the two unchanged blocks of the
same round, so that a drift of the machine that lasts longer than a round cancels out. The second unchanged training
against the first one is the control.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass, field, replace
from math import ceil, erfc, exp, expm1, inf, log1p, sqrt
from statistics import NormalDist
from typing import Annotated, Final

import numpy as np
from msgspec import Meta

from training_profiler.model.bounds import Count, Positive
from training_profiler.statistics.arrays import Floats
from training_profiler.statistics.compare import LEAST_SHOWN

# The shift between blocks of the same rounds, by ranks that every round is aligned for (Hodges and Lehmann 1962).
#
# If a change does nothing, the blocks of a round are exchangeable. So what a round took on average is subtracted, all
# blocks are ranked together, and the sum of the ranks of the changed training is compared with what exchanging blocks
# within rounds would give. A very slow block is one rank, however slow it is.

_HALVINGS = 16  # of the range of all differences, so an end of the interval is exact to 1/65,536 of it
_DIGITS = 12  # after which differences are of rounding
_NO_VARIANCE = 1e-30  # s^2, of times that are all the same


def faster_p(logs: Floats, is_by_rank: bool = True) -> float:
    """Return the probability of such ranks, or clearer ones, from a change without a gain.

    Args:
        logs: logarithms of the time of a step: a row for each round, the changed training in the first column.
    """
    (score,) = _scores(logs, np.zeros(1), is_by_rank)
    return max(_least_p(logs), 0.5 * erfc(score / sqrt(2)))


def shift_of(logs: Floats, error: float, is_by_rank: bool = True) -> tuple[float, float, float]:
    """Return the shift of the changed training at which its ranks are as expected, and the interval of the shift.

    Not by rank, all blocks together take as long then: a few very slow blocks decide it, if there are any.
    """
    differences = logs[:, 0] - logs[:, 1:].mean(axis=1)
    bound = NormalDist().inv_cdf(1 - error / 2)
    wanted = np.array([0.0, -bound, bound])
    low, high = np.full(3, differences.min()), np.full(3, differences.max())
    for _ in range(_HALVINGS):  # the score grows with the shift
        middle = (low + high) / 2
        is_beyond = _scores(logs, middle, is_by_rank) > wanted
        low, high = np.where(is_beyond, low, middle), np.where(is_beyond, middle, high)
    shift, least, most = ((low + high) / 2).tolist()
    return (shift, least, most) if _least_p(logs) <= error / 2 else (shift, -inf, inf)


def _least_p(logs: Floats) -> float:
    return float(logs.shape[1]) ** -len(logs)


def _scores(logs: Floats, shifts: Floats, is_by_rank: bool = True) -> Floats:
    """Return how much lower the ranks of the changed training are than expected, in standard deviations.

    Each of the shifts is subtracted from the changed training before. Not by rank, the times are summed as they are.
    """
    shifted = np.repeat(logs[np.newaxis], len(shifts), axis=0)
    shifted[:, :, 0] -= shifts[:, np.newaxis]
    if is_by_rank:
        aligned = shifted - shifted.mean(axis=2, keepdims=True)
        values, least = _ranks(aligned.reshape(len(shifts), -1).round(_DIGITS)).reshape(aligned.shape), 1.0
    else:
        values, least = np.exp(shifted), _NO_VARIANCE
    expected = values.mean(axis=2, keepdims=True)
    variance = ((values - expected) ** 2).mean(axis=2).sum(axis=1)
    below = (expected[:, :, 0] - values[:, :, 0]).sum(axis=1)
    scores: Floats = below / np.sqrt(np.maximum(variance, least))
    return scores


def _ranks(values: Floats) -> Floats:
    """Return the rank of each value of a row; equal values share the mean of theirs."""
    forward = values.argsort(axis=1, kind="stable").argsort(axis=1)
    backward = values[:, ::-1].argsort(axis=1, kind="stable").argsort(axis=1)[:, ::-1]
    ranks: Floats = (forward + backward) / 2
    return ranks


INTERVAL_ERROR: Final = 0.05  # of each interval that is shown
GAIN_ERROR: Final = 0.05  # of all gains that a session names together: fresh processes have to show them again
SCREEN_ERROR: Final = 0.3  # of the choice of what they show again
CONTROL_ERROR: Final = 0.01  # of the control's interval: beyond it, a session's gains are lost, and it has two controls
FUTILE_BELOW: Final = 0.01  # a gain that cannot be larger is not measured further
FEWEST_ROUNDS: Final = 12  # with 8 changes, fewer could show no gain at the last look
SCREEN_LOOKS: Final = (1 / 3, 2 / 3, 1.0)  # the fresh trials run all rounds, for narrow intervals
UNCHANGED: Final = "unchanged"
AGAIN: Final = "unchanged, again"
# On either side, if a session is about one change. Slow steps that follow each other make errors ten times as frequent;
# with that, about one simulated session of 200 makes a false claim (benchmarks/RESULTS.md).
CLAIM_ERROR: Final = 0.0005
LEAST_BEYOND: Final = 0.01  # two processes of the same program may differ by this, for all their lives
NARROW, NARROW_TOTAL = 0.02, 0.1  # widths of intervals that more rounds are not worth
MOST_SHOWN: Final = 1e15  # of a relative difference
LEAST_CPUS: Final = 0.1  # the system itself takes as much at times
_DEPENDENT_FROM: Final = 10.0  # correlation of a ratio with the next, times the rounds: beyond chance in few rounds
_FEWEST_GROUPS: Final = 12


@dataclass(frozen=True, slots=True)
class CpuUse:
    """Seconds of some blocks of a training, and CPU seconds in them."""

    wall_s: Positive = 0.0
    own_s: Positive = 0.0
    others_s: Positive = 0.0  # that other processes took of the CPUs that the training may use
    waited_s: Positive = 0.0  # for a CPU, of the thread that waited longest

    def __add__(self, other: "CpuUse") -> "CpuUse":
        return CpuUse(*(mine + its for mine, its in zip(astuple(self), astuple(other), strict=True)))

    def cpus(self, seconds: float) -> float:
        """Return as how many CPUs these CPU seconds are."""
        return seconds / self.wall_s if self.wall_s else 0.0


def why_undecided(cores: float | None, changed: CpuUse, unchanged: CpuUse) -> str | None:
    """Return why the blocks of a change do not show what it does where CPUs are free; None where they do.

    On a busy machine the unchanged training waits for CPUs as well. What a change waits longer, while others had CPUs,
    is for a CPU that it needs and did not get. Without others, it needs more CPUs than there are.
    """
    others = changed.cpus(changed.others_s)
    missing = changed.cpus(changed.waited_s) - unchanged.cpus(unchanged.waited_s)
    if cores is None or min(others, missing) < LEAST_CPUS:
        return None
    # Alone, the unchanged training waits for no CPU; the change does the same work, on all of them at best.
    least_s = unchanged.own_s / cores
    most = 1 - least_s / max(least_s, unchanged.wall_s - unchanged.waited_s, 1e-9)
    return (
        f"it waited for a CPU, as others took {others:.1f} of {cores:g}; alone it can save {most:.0%} at most: "
        "try again while they are free"
    )


Blocks = Sequence[float | None]
_Relative = Annotated[float, Meta(ge=-1, le=1e15)]


@dataclass(frozen=True, slots=True)
class Effect:
    """What a change does to the time of a step: -0.4 is 40% less; the interval is ``low`` to ``high``."""

    relative: _Relative
    low: float
    high: float
    p_value: Positive  # probability of such a result, or a clearer one, from a change without a gain
    rounds: Count
    total: _Relative | None = None  # of all blocks together; unlike ``relative``, a few very slow blocks decide it
    total_low: float = -1.0
    total_high: float = MOST_SHOWN
    total_p: Positive = 0.5

    def __str__(self) -> str:
        low, high = 100 * self.low, 100 * self.high
        interval = f" ({low:+.1f} .. {high:+.1f})" if abs(low) < 1000 and abs(high) < 1000 else ""
        return f"{self.relative:+.1%}{interval}"

    @property
    def differs(self) -> bool:
        """Whether the change does more than chance, and than two runs of the same program differ by.

        Where two unchanged trainings differ, nothing can be said of changes.
        """
        return abs(self.relative) >= LEAST_SHOWN and not self.low <= 0 <= self.high

    @property
    def of_total(self) -> "Effect":
        """The effect on all steps together."""
        total = self.relative if self.total is None else self.total
        return replace(self, relative=total, low=self.total_low, high=self.total_high, p_value=self.total_p)

    def claim(self, control: "Effect", parts: Iterable["Effect"]) -> "Effect | None":
        """Return the effect for which a session about one change may call it faster or slower; None without one.

        That is the one on all steps where it differs from a typical one's, as a change may make checkpoints slower.
        Long steps without the change of a typical one make that smaller in all, but must not turn it round. Each of the
        ``parts`` of the session has to show it, as processes of the same program may differ for all their lives.
        """
        typical, whole = [self, *parts], [each.of_total for each in (self, *parts)]
        if self.total is None or self.total_low <= self.relative <= self.total_high:
            whole = typical
        elif whole[0].low > 0 > self.relative or whole[0].high < 0 < self.relative:
            typical = whole
        for first, *others in (whole, typical):
            if first._is_shown(control) and all(each.low > 0 for each in others) | all(
                each.high < 0 for each in others
            ):
                return first
        return None

    def _is_shown(self, control: "Effect") -> bool:
        is_large = abs(self.relative) >= LEAST_SHOWN and max(self.low, -self.high) >= LEAST_BEYOND
        is_beyond = abs(log1p(self.relative)) > abs(log1p(control.relative))
        return is_large and is_beyond and min(self.p_value, 1 - self.p_value) <= CLAIM_ERROR

    def is_narrow(self, part: float = 1.0) -> bool:
        """Whether this part of a session has shown enough, and more rounds would show little more."""
        widths = self.high - self.low, self.total_high - self.total_low
        return all(width * sqrt(part) <= most for width, most in zip(widths, (NARROW, NARROW_TOTAL), strict=True))


def effect_of(*trainings: Blocks, all_steps: Sequence[Blocks] = (), error: float = INTERVAL_ERROR) -> Effect | None:
    """Return the effect of a change; None without a round that has all blocks.

    Args:
        trainings: seconds a step in the block of each round, of the changed training first; None where it did not run.
        all_steps: the same with the time of rare, long steps, if ``trainings`` has it only in part.
        error: of the interval.
    """
    typical, whole = (_columns(each) for each in (trainings, all_steps or trainings))
    ran = np.isfinite(typical).all(axis=1)
    if not ran.any():
        return None
    logs, whole = _independent(np.log(typical[ran])), whole[ran]
    together = len(whole) // len(logs)
    whole = whole[-together * len(logs) :].reshape(len(logs), together, -1).mean(axis=1)
    found, (total, least, most) = shift_of(logs, error), shift_of(np.log(whole), error, is_by_rank=False)
    shown = [expm1(min(each, log1p(MOST_SHOWN))) for each in (*found, total, least, most)]
    return Effect(
        shown[0],
        *(shown[1], shown[2], faster_p(logs), int(ran.sum())),
        *(shown[3], shown[4], shown[5], faster_p(np.log(whole), is_by_rank=False)),
    )


def _columns(trainings: Sequence[Blocks]) -> Floats:
    rounds = min(map(len, trainings))
    return np.column_stack([np.asarray(each[:rounds], np.float64) for each in trainings])


def _independent(logs: Floats) -> Floats:
    """Return means of so many consecutive rounds that the ratios of neighbours no longer go together."""
    while len(logs) >= 2 * _FEWEST_GROUPS:
        ratios = logs[:, 0] - logs[:, 1:].mean(axis=1)
        shifted = ratios - np.median(ratios)
        bound = max(float(np.median(np.abs(shifted))) * 4, 1e-12)
        near = np.clip(shifted, -bound, bound)
        near = near - near.mean()
        whole = float(near @ near)
        if whole <= 0 or float(near[1:] @ near[:-1]) < _DEPENDENT_FROM / len(near) * whole:
            break
        pairs = len(logs) // 2
        logs = logs[-2 * pairs :].reshape(pairs, 2, -1).mean(axis=1)
    return logs


def gains(effects: Mapping[str, Effect], error: float) -> set[str]:
    """Return the changes that are shown to be faster, all together with at most that error (Holm 1979)."""
    shown: set[str] = set()
    in_order = sorted(effects, key=lambda name: effects[name].p_value)
    for at, name in enumerate(in_order):
        if effects[name].p_value > error / (len(in_order) - at):
            break
        if effects[name].relative <= -LEAST_SHOWN and not (effects[name].total or 0.0) > 0:
            shown.add(name)
    return shown


def beyond_control(effect: Effect, control: Effect) -> bool:
    """Return whether a gain is larger than what the unchanged training differs by from itself."""
    return log1p(effect.relative) < -abs(log1p(control.relative))


LEAST_BLOCK_S: Final = 0.1  # shorter ones mostly measure how a training goes on after its stop
FEWEST_STEPS: Final = 2  # in a block: the first is not measured


@dataclass(frozen=True, slots=True)
class BlockSchedule:
    """How much is run."""

    warmup: Count  # steps
    rounds: Count
    block_steps: Count  # with the first, which is not measured
    step_s: float  # expected
    startup_s: float  # expected, with the warm-up

    @property
    def steps(self) -> int:
        """Steps of each training."""
        return self.warmup + self.rounds * self.block_steps

    def seconds(self, trainings: int, at_once: int) -> float:
        """Return how long a session takes at most, if changes make nothing slower."""
        return self.startup_s * ceil(trainings / at_once) + trainings * self.rounds * self.block_steps * self.step_s


def steps_of_a_block(step_s: float, cycle: int = 1, least_s: float = LEAST_BLOCK_S) -> int:
    """Return how many steps a block has, with the first, which is not measured.

    The others are a multiple of ``cycle``, the steps after which batches come in the same pattern.
    """
    least = max(FEWEST_STEPS - 1, ceil(least_s / step_s))
    return 1 + cycle * ceil(least / cycle)


@dataclass
class Wave:
    """The blocks of trainings that run interleaved, and what they have shown so far.

    It may stop after any round and go on later, from a file: the error that a look spends depends on the rounds that
    have run.
    """

    block_s: dict[str, list[float | None]]  # seconds a step, by training and round; None did not run
    rounds: Count  # that are planned
    error: float = GAIN_ERROR  # of all gains that are shown together
    looks: tuple[float, ...] = (1.0,)  # parts of the rounds after which a change may be decided
    done: Count = 0
    spent: float = 0.0  # of the error
    dropped: set[str] = field(default_factory=set)  # whose trainings failed
    shown: set[str] = field(default_factory=set)
    futile: set[str] = field(default_factory=set)
    has_ended: bool = False
    alone: Count = 0  # rounds whose times leave out the waiting for CPUs that others had
    all_steps_s: dict[str, list[float | None]] = field(default_factory=dict)  # where ``block_s`` is of typical steps

    @classmethod
    def of(
        cls, changes: Iterable[str], rounds: int, error: float = GAIN_ERROR, looks: tuple[float, ...] = (1.0,)
    ) -> "Wave":
        """Return a wave with these changes that has not run yet."""
        return cls({name: [] for name in (UNCHANGED, AGAIN, *changes)}, rounds, error, looks)

    @property
    def changes(self) -> list[str]:
        """The names of the changes."""
        return [name for name in self.block_s if name not in (UNCHANGED, AGAIN)]

    @property
    def open(self) -> list[str]:
        """The trainings whose next block is worth running; none once all changes are decided."""
        decided = self.shown | self.futile | self.dropped
        undecided = [name for name in self.changes if name not in decided]
        return [UNCHANGED, AGAIN, *undecided] if undecided and not self.has_ended else []

    def add_round(
        self, block_s: Mapping[str, float], all_steps_s: Mapping[str, float] | None = None, is_alone: bool = False
    ) -> None:
        """Add the seconds a step of each training that has run a block; look at the results if that is due.

        Args:
            block_s: of a typical step, if ``all_steps_s`` is given.
            all_steps_s: with rare, long steps.
            is_alone: whether they leave out the waiting for CPUs that others had.
        """
        for name, seconds in self.block_s.items():
            seconds.append(block_s.get(name))
            if all_steps_s is not None:
                self.all_steps_s.setdefault(name, []).append(all_steps_s.get(name))
        self.done, self.alone = self.done + 1, self.alone + is_alone
        if self.done >= self.rounds:
            self.end()
        elif not self.has_ended and self.done in [round(part * self.rounds) for part in self.looks]:
            self._look(self.done / self.rounds)

    def pause(self) -> None:
        """Look at the results so far; the wave may go on later with the error that is left."""
        if self.done and not self.has_ended:
            self._look(self.done / self.rounds)

    def end(self) -> None:
        """Look at the results for the last time, before the last round if a training has no more steps."""
        if not self.has_ended:
            self.has_ended = True
            self._look(1.0)

    def _look(self, part: float) -> None:
        spent = self.error * part**2  # that may have been spent by now (Kim and DeMets 1987)
        error, self.spent = spent - self.spent, spent
        effects = self.effects()
        control = effects.pop(AGAIN, None)
        if control is not None and not control.differs:
            found = gains(effects, error)
            self.shown |= {name for name in found if beyond_control(effects[name], control)}
        self.shown -= self.dropped
        self.futile |= {name for name, effect in effects.items() if effect.low > -FUTILE_BELOW} - self.shown

    def effects(self, rounds: slice = slice(None)) -> dict[str, Effect]:
        """Return the effect of each change, and of the control, in some rounds."""
        compared = {AGAIN: (AGAIN, UNCHANGED)} | {name: (name, UNCHANGED, AGAIN) for name in self.changes}
        found = {
            name: effect_of(
                *(self.block_s[each][rounds] for each in names),
                all_steps=[self.all_steps_s[each][rounds] for each in names if self.all_steps_s],
                error=CONTROL_ERROR if name == AGAIN else INTERVAL_ERROR,
            )
            for name, names in compared.items()
        }
        return {name: effect for name, effect in found.items() if effect is not None}

    def step_s(self, name: str) -> float | None:
        """Return the typical seconds of a step; None without a block."""
        blocks = np.asarray(self.block_s[name], np.float64)
        blocks = blocks[np.isfinite(blocks)]
        return float(exp(np.median(np.log(blocks)))) if len(blocks) else None


def differ(*samples: float) -> bool:
    """Return whether steps have known and different numbers of samples."""
    return bool(samples) and min(samples) > 0 and max(samples) > 1.01 * min(samples)
