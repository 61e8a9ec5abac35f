"""Compares two runs: step time with an interval, the sections that carry the difference, and the verdict."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import ceil, exp, expm1, hypot, inf, lgamma, log, log1p, pi, sqrt
from statistics import NormalDist
from typing import Final

import numpy as np

from training_profiler.base.units import duration_text
from training_profiler.model.series import RankSeries
from training_profiler.model.snapshot import OTHER
from training_profiler.statistics.arrays import Floats, Ints
from training_profiler.statistics.run_series import FEWEST_STEPS, SettledSteps, settle

# The mean of a series whose values depend on each other, and its standard error.
#
# Consecutive steps are not independent: a slow disk, a hot processor or a long batch lasts. The variance of the mean is
# the long-run variance over n. It is estimated from the lowest frequencies of the series: the mean square of its
# projections on the first cosines (equal-weighted cosine estimator; Lazarus, Lewis, Stock and Watson, "HAR Inference:
# Recommendations for Practice", Journal of Business & Economic Statistics 36, 2018), with Student's t for as many
# degrees of freedom as cosines. Few cosines are used, so that slow drift counts as noise.

MOST_COSINES: Final = 8
FEWEST_COSINES: Final = 4
MOST_VALUES: Final = 4096  # a longer series is averaged in consecutive groups first, which keeps low frequencies
HUBER_K: Final = 1.345  # 95% efficient for normal values (Huber 1964)
MAD_TO_STD: Final = 1.4826  # of normal values
_ROUNDS: Final = 50
_FARTHEST_T: Final = 700.0


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean with its uncertainty."""

    mean: float
    variance: float  # of the mean
    freedom: float  # degrees of freedom of the variance
    influence: Floats  # what each value adds to the mean, times the number of values; its mean is 0


def plain_mean(values: Floats) -> Estimate:
    """Return the arithmetic mean."""
    mean = float(values.mean())
    return _estimate(mean, values - mean)


def typical(values: Floats) -> Estimate:
    """Return Huber's M-estimate: the mean, in which values far from the median count no more than those near to it.

    So one long pause in 500 steps does not hide a difference of 3% in all others.
    """
    middle = float(np.median(values))
    scale = MAD_TO_STD * float(np.median(np.abs(values - middle)))
    if scale <= 1e-9 * abs(middle):
        return plain_mean(values)
    for _ in range(_ROUNDS):
        distance = (values - middle) / scale
        shift = scale * float(np.clip(distance, -HUBER_K, HUBER_K).mean()) / _part_near(distance)
        middle += shift
        if abs(shift) <= 1e-9 * scale:
            break
    distance = (values - middle) / scale
    return _estimate(middle, np.clip(distance, -HUBER_K, HUBER_K) * scale / _part_near(distance))


def _part_near(distance: Floats) -> float:
    return max(0.1, float((np.abs(distance) < HUBER_K).mean()))


def _estimate(mean: float, influence: Floats) -> Estimate:
    variance, freedom = variance_of_mean(influence)
    return Estimate(mean, variance, freedom, influence)


def variance_of_mean(values: Floats) -> tuple[float, float]:
    """Return the variance of the mean of a series, and its degrees of freedom."""
    group = -(-len(values) // MOST_VALUES)
    if group > 1:
        values = values[: len(values) // group * group].reshape(-1, group).mean(axis=1)
    count = len(values)
    # Lazarus et al. recommend 0.4 n^(2/3).
    cosines = min(count - 1, max(FEWEST_COSINES, min(MOST_COSINES, round(0.4 * count ** (2 / 3)))))
    if cosines < 1:
        return float("inf"), 1.0
    angles = pi * np.outer(np.arange(1, cosines + 1), np.arange(count) + 0.5) / count
    projections = sqrt(2 / count) * np.cos(angles) @ (values - values.mean())
    return float((projections**2).mean()) / count, float(cosines)


def freedom_of_sum(*terms: tuple[float, float]) -> float:
    """Return the degrees of freedom of a sum of independent variances (Welch 1947), given with theirs."""
    largest = max(variance for variance, _ in terms)
    if largest <= 0 or largest == float("inf"):
        return min(freedom for _, freedom in terms)
    parts = [(variance / largest, freedom) for variance, freedom in terms]
    return float(sum(part for part, _ in parts) ** 2 / sum(part**2 / freedom for part, freedom in parts))


@lru_cache(256)
def student_t(level: float, freedom: int) -> float:
    """Return the half-width of the interval around 0 that holds ``level`` of Student's t distribution."""
    at = np.sinh(np.linspace(0, np.arcsinh(_FARTHEST_T), 20_001))  # dense near 0
    log_density = lgamma((freedom + 1) / 2) - lgamma(freedom / 2) - 0.5 * log(freedom * pi)
    density = exp(log_density) * (1 + at**2 / freedom) ** (-(freedom + 1) / 2)
    area = np.concatenate([[0.0], np.cumsum((density[1:] + density[:-1]) * np.diff(at))])
    return float(np.interp(level, area, at))


STATE_STD: Final = 0.026  # of the logarithm; equal runs of 1 s beside other programs differed by up to 5.6%
FORGOTTEN_S: Final = 2.5  # until the correlation with now is 1/e
LONGEST_S: Final = 3600.0
_GROWTH: Final = 1.1
FASTER, SLOWER, NOT_SHOWN = "faster", "slower", "no difference shown"
# A verdict is wrong in at most 5% of pairs of equal runs. Most of that belongs to the typical step; the mean finds rare
# long steps, which are far outside of any interval.
TYPICAL_LEVEL: Final = 0.96
MEAN_LEVEL: Final = 0.99
SECTIONS_LEVEL: Final = 0.95  # of all sections together (Bonferroni)
# Two runs of the same program differ by 1 to 2%: memory layout, temperature, drift that began differently (Mytkowicz et
# al., "Producing wrong data without doing anything obviously wrong", ASPLOS 2009).
LEAST_SHOWN: Final = 0.02
SAME_WORK: Final = 0.01  # batches of the last epoch's end make samples a step differ by less
PAIRED_FROM: Final = 0.5  # correlation between the steps of the two runs
# Of the logarithm of what lost time explains: others also take caches, memory and half of a processor. Equal runs
# beside other programs differed by up to 0.8 of it (benchmarks.comparison --real).
OF_LOSS: Final = 0.75
MOST_LOST: Final = 0.95
CARRIES: Final = 0.1  # of the difference
MANY: Final = 1e6  # degrees of freedom


def unseen_variance(span_s: float) -> float:
    """Return the variance of a run's mean, relative to its square, that steps of ``span_s`` in all do not show."""
    if span_s <= 0:
        return STATE_STD**2
    x = span_s / FORGOTTEN_S
    in_mean = 2 / x * (1 - (1 - exp(-x)) / x) if x > 1e-4 else 1.0
    shown = sum(2 / x / (1 + (pi * number / x) ** 2) for number in range(1, MOST_COSINES + 1)) / MOST_COSINES
    return STATE_STD**2 * max(0.0, in_mean - shown)


def span_needed(difference: float, scatter: float, span_s: float, level: float) -> float | None:
    """Return how long two runs have to be, in s, for this difference of logarithms to be shown.

    ``scatter`` is half of the interval by the scatter of the steps of two runs of ``span_s``; it falls as runs get
    longer. None where an hour is not enough.
    """
    quantile = NormalDist().inv_cdf((1 + level) / 2)
    needed_s = span_s
    while needed_s < LONGEST_S:
        needed_s *= _GROWTH
        if hypot(scatter * sqrt(span_s / needed_s), quantile * sqrt(2 * unseen_variance(needed_s))) < difference:
            return needed_s
    return None


@dataclass(frozen=True, slots=True)
class Difference:
    """How much longer a step takes than before: 0.03 is 3%; the interval is ``low`` to ``high``."""

    before_s: float
    after_s: float
    relative: float
    low: float
    high: float
    level: float
    needed_s: float | None = None  # time of steps in each run that would show it, if these runs are too short

    @property
    def is_shown(self) -> bool:
        """Whether the runs differ by more than chance and two runs of the same program do."""
        return abs(self.relative) >= LEAST_SHOWN and not self.low <= 0 <= self.high


@dataclass(frozen=True, slots=True)
class SectionDifference:
    """The exclusive time of a section in a step; the interval holds for all sections together."""

    name: str
    before_s: float
    after_s: float
    low_s: float
    high_s: float

    @property
    def seconds(self) -> float:
        """How much longer it takes."""
        return self.after_s - self.before_s

    @property
    def is_shown(self) -> bool:
        """Whether the interval is above or below 0."""
        return not self.low_s <= 0 <= self.high_s


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two runs, compared."""

    verdict: str
    reasons: tuple[str, ...]  # why no difference is shown; empty otherwise
    is_by_mean: bool  # the verdict rests on rare long steps, not on the typical one
    typical: Difference
    mean: Difference
    sections: tuple[SectionDifference, ...]  # largest difference first
    carriers: tuple[str, ...]  # the sections that carry the difference, the largest first
    changed_most: SectionDifference | None  # beyond chance and by 2% of a step or more, whatever is shown of the step
    before: SettledSteps
    after: SettledSteps
    work_ratio: float | None  # samples a step, after over before; None if unknown
    is_paired: bool

    @property
    def is_by_work(self) -> bool:
        """Whether times are those of the same number of samples."""
        return self.work_ratio is not None and abs(self.work_ratio - 1) > SAME_WORK

    @property
    def shown(self) -> Difference:
        """The difference that the verdict rests on."""
        return self.mean if self.is_by_mean else self.typical


class NoComparisonError(ValueError):
    """Two runs cannot be compared."""


def compare(before: RankSeries, after: RankSeries) -> Comparison:
    """Return the comparison of two runs.

    Raises:
        NoComparisonError: a run has fewer than two steps, or they have no section in common.
    """
    for name, run in (("the first", before), ("the second", after)):
        if run.steps < 2:
            raise NoComparisonError(f"{name} run has {run.steps or 'no'} step{'' if run.steps == 1 else 's'} so far")
    return compare_settled(settle(before), settle(after))


def compare_settled(old: SettledSteps, new: SettledSteps) -> Comparison:
    """Return the comparison of the steps of two runs that are to be compared.

    Raises:
        NoComparisonError: they have no section in common.
    """
    names = [run.sections.keys() - {OTHER} for run in (old, new)]
    if all(names) and not names[0] & names[1]:
        shown = [", ".join(sorted(each)[:3]) for each in names]
        raise NoComparisonError(f"the runs have no section in common ({shown[0]}; {shown[1]})")
    work = new.samples_a_step / old.samples_a_step if old.samples_a_step and new.samples_a_step else None
    scale = 1 / work if work is not None and abs(work - 1) > SAME_WORK else 1.0
    at = _paired_steps(old, new)
    values = (old.step_s, new.step_s) if at is None else (old.step_s[at[0]], new.step_s[at[1]])
    usual, mean = (
        _difference(method(values[0]), method(values[1]), level, (old, new), scale, at is not None)
        for method, level in ((typical, TYPICAL_LEVEL), (plain_mean, MEAN_LEVEL))
    )
    verdict, is_by_mean = _verdict(usual, mean)
    reasons, few = _reasons(old, new, usual), min(old.count, new.count) < FEWEST_STEPS
    if few:
        verdict = NOT_SHOWN
    sections = _sections(old, new, scale, is_by_mean)
    least_s = LEAST_SHOWN * usual.before_s
    sign, whole = {SLOWER: 1, FASTER: -1, NOT_SHOWN: 0}[verdict], sum(row.seconds for row in sections)
    carriers = tuple(
        row.name
        for row in sections
        if row.is_shown and sign * row.seconds > 0 and sign * row.seconds >= CARRIES * abs(whole)
    )
    return Comparison(
        verdict,
        reasons if verdict == NOT_SHOWN else (),
        is_by_mean,
        usual,
        mean,
        sections,
        carriers,
        None if few else next((row for row in sections if row.is_shown and abs(row.seconds) >= least_s), None),
        old,
        new,
        work,
        at is not None,
    )


def _verdict(usual: Difference, mean: Difference) -> tuple[str, bool]:
    is_by_mean = mean.is_shown and (not usual.is_shown or usual.relative * mean.relative < 0)
    shown = mean if is_by_mean else usual
    if not shown.is_shown:
        return NOT_SHOWN, False
    return SLOWER if shown.relative > 0 else FASTER, is_by_mean


def _reasons(old: SettledSteps, new: SettledSteps, usual: Difference) -> tuple[str, ...]:
    fewest = min(old.count, new.count)
    if fewest < FEWEST_STEPS:
        return (f"{fewest} steps after warm-up are too few; {FEWEST_STEPS} are needed",)
    if not usual.low <= 0 <= usual.high:
        return (f"differences below {LEAST_SHOWN:.0%} also occur between two runs of the same program",)
    if usual.needed_s is not None:
        short, size = duration_text(min(old.span_s, new.span_s)), f"{abs(usual.relative):.1%}"
        needed = f"needs about {ceil(usual.needed_s)} s of steps in each"
        return (f"runs of {short} are too short to show {size}: the machine's drift does as much ({needed})",)
    width = max(usual.high - usual.relative, usual.relative - usual.low)
    lost = max(old.lost_of_run or 0.0, new.lost_of_run or 0.0)
    is_busy = _explained((old, new))[1] > LEAST_SHOWN
    busy = f"; the machine was busy: others took {lost:.0%} of the time" if is_busy else ""
    return (f"a difference below {max(width, LEAST_SHOWN):.1%} would not stand out from noise{busy}",)


def _difference(
    old: Estimate,
    new: Estimate,
    level: float,
    runs: tuple[SettledSteps, SettledSteps],
    scale: float,
    is_paired: bool,
) -> Difference:
    """Return the relative difference, by the delta method for the logarithm of the ratio."""
    if is_paired:
        terms = [variance_of_mean(new.influence / new.mean - old.influence / old.mean)]
    else:
        terms = [(each.variance / each.mean**2, each.freedom) for each in (old, new)]
    ratio = log(new.mean * scale / old.mean)
    # A busy machine explains a difference up to that between the lost times, and lost times are known only roughly.
    explained, allowance = _explained(runs)
    scatter = _width(level, terms)
    # The variance that a run is too short to see is taken for known.
    width = _width(level, [*terms, *((unseen_variance(run.span_s), MANY) for run in runs)])
    low = ratio - width - allowance - max(0.0, explained)
    high = ratio + width + allowance - min(0.0, explained)
    left = abs(ratio) - allowance - max(0.0, explained if ratio > 0 else -explained)
    is_too_short = scatter < left <= width and abs(expm1(ratio)) >= LEAST_SHOWN
    needed_s = span_needed(left, scatter, min(run.span_s for run in runs), level) if is_too_short else None
    return Difference(old.mean, new.mean, expm1(ratio), expm1(low), exp(min(50.0, high)) - 1, level, needed_s)


def _width(level: float, terms: Sequence[tuple[float, float]]) -> float:
    """Return half of the interval of a sum with these variances, each with its degrees of freedom."""
    variance = sum(term for term, _ in terms)
    if variance == inf:
        return 50.0
    return student_t(level, max(1, int(freedom_of_sum(*terms)))) * sqrt(variance)


def _explained(runs: tuple[SettledSteps, SettledSteps]) -> tuple[float, float]:
    """Return the logarithm of the ratio that lost time explains, and by how much that may be wrong.

    Others that took CPUs from a part of a run were there in the rest as well, where they slowed the CPUs down.
    """
    of_steps, of_runs = (
        [-log1p(-min(MOST_LOST, part or 0.0)) for part in lost]
        for lost in ([run.lost for run in runs], [run.lost_of_run for run in runs])
    )
    return of_steps[1] - of_steps[0], OF_LOSS * max(*of_steps, *of_runs)


def _paired_steps(old: SettledSteps, new: SettledSteps) -> tuple[Ints, Ints] | None:
    """Return the places of the steps that both runs have, if those go together; None otherwise.

    Steps of the same number go together where both runs pass batches of different sizes in the same order.
    """
    _, at_old, at_new = np.intersect1d(old.numbers, new.numbers, assume_unique=True, return_indices=True)
    if len(at_old) < max(FEWEST_STEPS, 0.8 * max(old.count, new.count)):
        return None
    influences = [typical(run.step_s[at]).influence for run, at in ((old, at_old), (new, at_new))]
    # Without what changes slowly: temperature and other programs are not work.
    changes = [np.diff(influence) for influence in influences]
    norms = [float(np.sqrt((change**2).sum())) for change in changes]
    if min(norms) <= 0 or float(changes[0] @ changes[1]) < PAIRED_FROM * norms[0] * norms[1]:
        return None
    return at_old, at_new


def _sections(old: SettledSteps, new: SettledSteps, scale: float, is_by_mean: bool) -> tuple[SectionDifference, ...]:
    if min(len(old.block_s), len(new.block_s)) < 2:
        return ()
    names = sorted(old.sections.keys() | new.sections.keys())
    rows = []
    weights = [np.ones(len(run.block_s)) if is_by_mean else _weights(run) for run in (old, new)]
    level = 1 - (1 - SECTIONS_LEVEL) / max(1, len(names))
    explained, allowance = _explained((old, new))
    for name in names:
        (was_s, was_variance, was_freedom), (now_s, now_variance, now_freedom) = (
            _section(run, weight, name) for run, weight in zip((old, new), weights, strict=True)
        )
        terms = [(was_variance, was_freedom), (scale**2 * now_variance, now_freedom)]
        unseen = [(was_s**2 * unseen_variance(run.span_s), MANY) for run in (old, new)]
        width = _width(level, [*terms, *unseen])
        after_s = scale * now_s
        seconds = after_s - was_s
        # What waits for a CPU may be any section.
        low_s = seconds - width - was_s * expm1(allowance + max(0.0, explained))
        high_s = seconds + width + was_s * expm1(allowance + max(0.0, -explained))
        rows.append(SectionDifference(name, was_s, after_s, low_s, high_s))
    return tuple(sorted(rows, key=lambda row: (-abs(row.seconds), row.name)))


def _weights(run: SettledSteps) -> Floats:
    """Return Huber's weights of the blocks, by their step time: the sections then add up to the typical step."""
    step_s = run.block_s / run.block_steps
    distance = np.abs(step_s - typical(step_s).mean)
    scale = MAD_TO_STD * float(np.median(np.abs(step_s - np.median(step_s))))
    if scale <= 0:
        return np.ones(len(step_s))
    return np.minimum(1.0, HUBER_K * scale / np.maximum(distance, 1e-12 * scale))


def _section(run: SettledSteps, weights: Floats, name: str) -> tuple[float, float, float]:
    """Return the mean of a section in a step, its variance, and the degrees of freedom of that."""
    seconds = run.sections.get(name)
    if seconds is None:
        return 0.0, 0.0, float(max(1, len(weights) - 1))
    steps = weights * run.block_steps
    mean_s = float((weights * seconds).sum() / steps.sum())
    influence = (weights * seconds - mean_s * steps) / steps.mean()
    return mean_s, *variance_of_mean(influence)
