"""Converts totals in nanoseconds to the stats of a snapshot."""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from typing import Any, Final, NamedTuple

import numpy as np

from training_profiler.aggregation.lines import (
    BEFORE_STEPS,
    IN_STEPS,
    NO_TIMES,
    is_known,
    lines_of,
    lines_with_loops,
    spent_on,
)
from training_profiler.aggregation.step_change import explained_by_calls, halves, step_change, work_growth
from training_profiler.aggregation.step_totals import WARMUP_NEEDS
from training_profiler.aggregation.totals import Totals
from training_profiler.base.sections import (
    ACTING_SECTIONS,
    BACKWARD_PASS,
    DATA_LOADING,
    FIRST_FETCH,
    FORWARD_PASS,
    OUTSIDE_SECTIONS,
    OUTSIDE_STEPS_SECTIONS,
    ROLLOUT,
    STEP_PARTS,
    SYNCHRONIZATION,
    VALIDATION_EPOCH,
    WITHIN,
)
from training_profiler.base.units import NS_PER_S
from training_profiler.model.location import NOT_SAMPLED, Location
from training_profiler.model.snapshot import (
    BEFORE_TRAINING,
    OTHER,
    OUTSIDE_STEPS,
    PROFILER,
    EpochStats,
    LineStats,
    SectionStats,
    StepStats,
)
from training_profiler.statistics.trend import trend

Samples = Counter[Location | None]


class OutsideSamples(NamedTuple):
    """Samples and times before and after the begin of the first step, in no section and in no step."""

    before: Samples
    before_ns: float
    after: Samples
    after_ns: float

    def evenly(self) -> Samples:
        """Return all samples, those of the side with more samples a second in a smaller number."""
        if not self.before or not self.after or self.before_ns <= 0 or self.after_ns <= 0:
            return self.before + self.after
        weight = self.before_ns / self.before.total() / (self.after_ns / self.after.total())
        return _scaled(self.before, min(1.0, weight)) + _scaled(self.after, min(1.0, 1 / weight))


def _scaled(samples: Samples, weight: float) -> Samples:
    return Counter({location: round(count * weight) for location, count in samples.items()})


def outside_samples(totals: Totals, section_names: Collection[str]) -> OutsideSamples:
    """Return the samples outside of steps; before the first one, ``section_names`` may have some as well."""
    outside: Samples = Counter({location: count for (id, location), count in totals.lines.items() if id == 0})
    outside.subtract({location: count for (id, location), count in totals.lines.items() if id == IN_STEPS})
    before: Samples = Counter()
    in_sections = 0
    for (id, location), count in totals.lines.items():
        if id != BEFORE_STEPS:
            continue
        if location is not None and location.activity and location.activity in section_names:
            in_sections += count
        else:
            # As it stands among the lines of the run, which do not say what was prepared.
            if location is not None and location.activity:
                location = location._replace(activity="") if location.file else None
            before[location] += count
    before &= outside
    seen = before.total() + in_sections
    outside_ns = int(totals.sections.self_ns[0]) - int(totals.sections.step_self_ns[0])
    startup_ns = max(0, (totals.loop_begin_ns or totals.begin_ns) - totals.begin_ns)
    before_ns = min(float(outside_ns), startup_ns * before.total() / seen if seen else float(startup_ns))
    return OutsideSamples(before, before_ns, +outside - before, outside_ns - before_ns)


QUANTILES: Final = {"p50_s": 0.5, "p95_s": 0.95, "p99_s": 0.99}
EXPLAINS_AT_LEAST: Final = 0.05  # of the variance of step time
LIKE_OTHERS: Final = 1.5  # the mean validation between steps: the last one may be so much longer


def section_stats(
    totals: Totals, names: Mapping[int, str], configured_warmup: int | None = None, *, is_interval: bool = False
) -> dict[str, SectionStats]:
    """Return the stats of each section, and of the time in no section; shares add up to 1.

    In an interval no time is after the training, which goes on.
    """
    after_ns = [0] * totals.sections.rows if is_interval else _after_training_ns(totals, names)
    early_ns = totals.early_ns[: warmup_steps(totals, names, configured_warmup)].sum(axis=0)
    early_ns = np.pad(early_ns, (0, max(0, totals.sections.rows - len(early_ns))))
    sums = totals.sections
    wall_ns = max(1, totals.wall_ns)
    stats = {}
    ids = _with_rows(totals)
    parents = _parents(totals)
    names = _plain_where_alone(totals, names, [*ids, *parents.values()])
    seen = {names[id] for id in ids}
    for id in ids:
        # Most calls are actions in rollouts, but the few long ones of targets may have most of the time.
        around = parents.get(id, 0)
        if names.get(around) == ROLLOUT and sums.total_ns[id] > sums.total_ns[around]:
            parents[id] = 0
        # A model that computes gradients in its forward pass, such as forces, has a backward pass of its loss as well.
        is_within = (names[id], names.get(around)) == (BACKWARD_PASS, FORWARD_PASS)
        if is_within and totals.sections.parents.get((0, id), 0) >= 0.25 * sums.count[id]:
            parents[id] = 0
    for id in ids:
        stats[names[id]] = SectionStats(
            name=names[id],
            count=int(sums.count[id]),
            total_s=int(sums.total_ns[id]) / NS_PER_S,
            self_s=int(sums.self_ns[id]) / NS_PER_S,
            share=int(sums.self_ns[id]) / wall_ns,
            parent=names.get(parents.get(id, 0)) or _outer(names[id], seen),
            other_threads_s=int(sums.elsewhere_ns[id]) / NS_PER_S,
            step_self_s=int(sums.step_self_ns[id]) / NS_PER_S,
            step_total_s=int(sums.step_total_ns[id]) / NS_PER_S,
            after_s=after_ns[id] / NS_PER_S,
            settled_total_s=int(sums.step_total_ns[id] - early_ns[id]) / NS_PER_S,
            min_step=int(sums.min_step[id]),
            max_step=int(sums.max_step[id]),
            device_count=int(sums.device_count[id]),
            device_total_s=int(sums.device_ns[id]) / NS_PER_S if sums.device_count[id] else None,
            **_measured(totals, id, is_mixed=names[id] == SYNCHRONIZATION and configured_warmup is None),
        )
    for name, self_ns, step_ns in _uncovered(totals):  # added to a user's section of the same name if there is one
        self_s, step_s = self_ns / NS_PER_S, step_ns / NS_PER_S
        of = stats.get(name) or SectionStats(name, 0, self_s, 0.0, 0.0, step_total_s=step_s)
        stats[name] = replace(
            of,
            self_s=of.self_s + self_s,
            share=of.share + self_ns / wall_ns,
            step_self_s=of.step_self_s + step_s,
            after_s=of.after_s + (after_ns[0] / NS_PER_S if name == OUTSIDE_STEPS else 0.0),
        )
    if OTHER in stats:
        settled_s = int(sums.step_self_ns[0] - early_ns[0]) / NS_PER_S
        stats[OTHER] = replace(stats[OTHER], settled_total_s=stats[OTHER].settled_total_s + settled_s)
    return stats


def _after_training_ns(totals: Totals, names: Mapping[int, str]) -> list[int]:
    """Return the time of each section after the training, which ends with its last step or the epoch around it.

    What the program also does between its steps, such as validation, belongs to the last of them as well: up to the
    mean of those between steps, or half more. A test after the last epoch is not part of that. After a single pass over
    the data, the first evaluation is its validation: of several, as much as the shortest can have taken.
    """
    sums = totals.sections
    after_ns, before = np.minimum(sums.after_ns, sums.self_ns), sums.count - sums.after_count
    passes = sum(int(before[id]) for id, name in names.items() if name == FIRST_FETCH and id < sums.rows)
    for outer in OUTSIDE_STEPS_SECTIONS if after_ns.any() else ():
        ids = [id for id, name in names.items() if name.partition(WITHIN)[0] == outer and id < sums.rows]
        last_ns, between_ns = int(after_ns[ids].sum()), int((sums.self_ns - after_ns)[ids].sum())
        own, fetches = ([id for id in ids if names[id] == name] for name in (outer, f"{outer}{WITHIN}{FIRST_FETCH}"))
        count = max(1, int(before[own].sum()))
        usual_ns = between_ns / count
        if passes == count == 1 and outer == VALIDATION_EPOCH and usual_ns < last_ns / 4:  # or a check before any step
            others = max(0, int(sums.after_count[own + fetches].max(initial=0)) - 1)
            usual_ns = max(usual_ns, last_ns - others * int(sums.max_ns[own].max(initial=0)))
        if last_ns:
            part = 1.0 if last_ns <= LIKE_OTHERS * usual_ns else usual_ns / last_ns
            after_ns[ids] -= np.rint(part * after_ns[ids]).astype(np.int64)
    return list(map(int, after_ns))


def _outer(name: str, seen: Collection[str]) -> str | None:
    """Return the section around one of which only the time is known, from its name; None if that does not say it."""
    outer = name.partition(WITHIN)[0]
    return outer if outer != name and outer in OUTSIDE_SECTIONS and outer in seen else None


def _plain_where_alone(totals: Totals, names: Mapping[int, str], among: Iterable[int]) -> dict[int, str]:
    """Return the names of the sections ``among``, without the outer section where that is unambiguous."""
    seen = set(_with_rows(totals)) & names.keys()
    within = {}
    for id in seen:
        outer, slash, plain = names[id].partition(WITHIN)
        if slash and outer in OUTSIDE_SECTIONS and (plain not in STEP_PARTS or outer == PROFILER):
            within[id] = plain
    uses = Counter(within.get(id, names[id]) for id in seen)
    plain_names = {id: plain for id, plain in within.items() if uses[plain] == 1}
    return {id: names[id] for id in seen.union(among) if id in names} | plain_names


def _with_rows(totals: Totals) -> list[int]:
    """Return the sections that have ended, or have time of their own so far."""
    sums = totals.sections
    return (np.flatnonzero((sums.count | sums.self_ns | sums.elsewhere_ns)[1:]) + 1).tolist()


def _measured(totals: Totals, id: int, is_mixed: bool) -> dict[str, Any]:
    """Return the stats of single spans; ``is_mixed``: for some spans only the sum may be known."""
    sums = totals.sections
    count = int(sums.measured[id])
    if count < sums.count[id] and (is_mixed or not count):
        return {"avg_s": int(sums.total_ns[id]) / int(sums.count[id]) / NS_PER_S}
    if not count:
        return {}
    low_ns, high_ns = int(sums.min_ns[id]), int(sums.max_ns[id])
    mean_ns = float(sums.mean_ns[id])
    if count == sums.count[id]:  # total over count, so that a reader can check it
        whole_ns = int(sums.total_ns[id]) / count
        if whole_ns > 1.5 * high_ns:  # a span is the last piece of an update that computes its own losses
            return {"avg_s": whole_ns / NS_PER_S}
        mean_ns = whole_ns if whole_ns <= high_ns else mean_ns
    stats = {"avg_s": mean_ns, "min_s": float(low_ns), "max_s": float(high_ns)}
    if count > 1:
        stats["std_s"] = float(np.sqrt(sums.m2[id] / (count - 1)))
    for key, quantile_ns in zip(QUANTILES, sums.quantiles_ns(id, tuple(QUANTILES.values())), strict=False):
        # The middle of a bin can lie beyond the exact extremes.
        stats[key] = min(max(quantile_ns, low_ns), high_ns)
    return {name: ns / NS_PER_S for name, ns in stats.items()}


def _uncovered(totals: Totals) -> list[tuple[str, int, int]]:
    """Return (name, ns, ns within steps) of the time in no section."""
    uncovered_ns, in_steps_ns = int(totals.sections.self_ns[0]), int(totals.sections.step_self_ns[0])
    if not totals.steps.count or uncovered_ns <= in_steps_ns:
        return [(OTHER, uncovered_ns, in_steps_ns)]
    return [(OTHER, in_steps_ns, in_steps_ns), (OUTSIDE_STEPS, uncovered_ns - in_steps_ns, 0)]


def line_counts(totals: Totals, names: Mapping[int, str]) -> dict[str, Counter[Location | None]]:
    """Return the samples of each line by section."""
    counts = _by_section(totals, names, totals.lines)
    # Those in no section are split in the same way as ``_uncovered`` splits the time.
    is_whole = len(_uncovered(totals)) == 1
    of_row = 0 if is_whole else IN_STEPS
    uncovered = {OTHER: Counter({location: count for (id, location), count in totals.lines.items() if id == of_row})}
    if not is_whole:
        uncovered[OUTSIDE_STEPS] = outside_samples(totals, set(names.values())).evenly()
    for name, samples in uncovered.items():
        counts[name] = counts.get(name, Counter()) + samples
    return counts


def times_of_lines(totals: Totals, names: Mapping[int, str]) -> dict[str, Counter[Location | None]]:
    """Return the time in ns that the samples of each line stand for, by section, without time outside of steps."""
    line_ns = totals.weighted_lines.times()
    times = _by_section(totals, names, line_ns, other=IN_STEPS if len(_uncovered(totals)) > 1 else 0)
    times.setdefault(OTHER, Counter())
    return times


def _by_section(
    totals: Totals,
    names: Mapping[int, str],
    lines: Mapping[tuple[int, Location | None], int],
    other: int | None = None,
) -> dict[str, Counter[Location | None]]:
    """Return the numbers by section; those of row ``other`` are of no section, and come last."""
    shown = _plain_where_alone(totals, names, {id for id, _ in lines if id > 0})
    found: dict[str, Counter[Location | None]] = {}
    for (id, location), number in sorted(lines.items(), key=lambda item: item[0][0] == other):
        if id > 0 or id == other:
            found.setdefault(shown[id] if id > 0 else OTHER, Counter())[location] += number
    return found


def divided_ns(
    sections: Mapping[str, SectionStats], totals: Totals, names: Mapping[int, str]
) -> dict[str, dict[Location | None, float]]:
    """Return the exclusive time of each section in ns, divided among its lines; nothing of a run without samples.

    Samples alone would not do: there are more of them a second in a start-up than in steps. A section that no sample
    fell into has its time at ``NOT_SAMPLED``. What sections have before the training stands apart.
    """
    counts, times = line_counts(totals, names), times_of_lines(totals, names)
    seconds = {name: section.self_s - section.before_s for name, section in sections.items()}
    if (before_s := sum(section.before_s for section in sections.values())) > 0:
        seconds[BEFORE_TRAINING] = before_s
        of_start = {location: count for (id, location), count in totals.lines.items() if id == BEFORE_STEPS}
        counts[BEFORE_TRAINING] = Counter(of_start)
        counts[OUTSIDE_STEPS] = outside_samples(totals, set(names.values())).after
    divided: dict[str, dict[Location | None, float]] = {}
    for name, own_s in seconds.items() if totals.lines else ():
        lines, spent = divided.setdefault(name, {}), spent_on(counts.get(name, Counter()), times.get(name))
        spent = spent or Counter({NOT_SAMPLED: 1})
        for line, part in spent.items():
            shown = line and Location(*line[:6])  # up to its phase
            lines[shown] = lines.get(shown, 0.0) + own_s * NS_PER_S * part / spent.total()
    return divided


def line_stats(
    counts: Mapping[str, Counter[Location | None]],
    sections: Mapping[str, SectionStats],
    times: Mapping[str, Counter[Location | None]] = NO_TIMES,
    callers: set[Location] | None = None,
) -> dict[str, tuple[LineStats, ...]]:
    """Return the lines of each section, the longest first; none for sections with too few samples.

    Each has the part of its section's time that its samples have, by the ``times`` that these stand for. ``callers``
    are the lines that only call a loop, by default those of ``counts``.
    """
    callers = lines_with_loops(counts) if callers is None else callers
    return {
        name: lines_of(sections[name].share, samples, callers, times.get(name))
        for name, samples in counts.items()
        if name in sections and is_known(samples)
    }


def settled_line_stats(
    totals: Totals,
    names: Mapping[int, str],
    counts: Mapping[str, Counter[Location | None]],
    sections: Mapping[str, SectionStats],
    warmup: int,
) -> dict[str, tuple[LineStats, ...]]:
    """Return the same from the samples after warm-up, for sections that have enough of them.

    Within its section, each line has its part of these samples. ``counts`` are of the whole run. Outside of steps, they
    are those after the begin of the first one.
    """
    found, callers = outside_samples(totals, set(names.values())), lines_with_loops(counts)
    outside = {}
    if is_known(found.after) and totals.wall_ns:
        outside[OUTSIDE_STEPS] = lines_of(found.after_ns / totals.wall_ns, found.after, callers)
    if not warmup:
        return outside
    history, steps = totals.history, totals.steps.count
    settled, times = (
        _by_section(totals, names, lines, other=IN_STEPS)
        for lines in (history.lines(warmup, steps), history.line_ns(warmup, steps))
    )
    return outside | line_stats(settled, sections, times, callers)


def _parents(totals: Totals) -> dict[int, int]:
    """Return the section around most spans of each section; no chain of parents is circular."""
    best: dict[int, tuple[int, int]] = {}
    for (parent, id), count in totals.sections.parents.items():
        best[id] = max(best.get(id, (-1, 0)), (count, parent))
    parents = {id: parent for id, (_, parent) in best.items()}
    for id in parents:
        seen, at = {id}, parents[id]
        while at in parents and at not in seen:
            seen.add(at)
            at = parents[at]
        if at:  # circular
            parents[id] = 0
    return parents


def warmup_steps(totals: Totals, names: Mapping[int, str], configured: int | None) -> int:
    """Return the number of first steps to leave out; 0 if no step would be left."""
    steps = totals.steps
    warmup = steps.warmup_steps(configured)
    # The first steps may be long because the model acts, or computes targets, as in later long steps.
    acting = [id for id, name in names.items() if name in ACTING_SECTIONS and id < totals.early_ns.shape[1]]
    has_acted = configured is None and totals.early_ns[:warmup, acting].any()
    if has_acted and steps.longest(warmup)[0] >= 0.5 * min(steps.first_ns[:warmup]):
        warmup = 0  # a later step is of the same kind
    if configured is None and steps.count >= WARMUP_NEEDS:
        made_long = 0 if totals.early_ns[:, acting].any() else steps.steps_made_long(totals.named_steps)
        warmup = max(warmup, totals.slow_steps, made_long)
    return 0 if warmup >= steps.count or warmup > len(steps.first_ns) else warmup


def step_stats(
    totals: Totals, names: Mapping[int, str], configured_warmup: int | None, *, is_interval: bool = False
) -> StepStats | None:
    """Return the stats of the steps; None without any. An interval has no trend and no explanation of it."""
    steps = totals.steps
    warmup = warmup_steps(totals, names, configured_warmup)
    spread, normal = steps.spread(warmup), steps.normal_spread(warmup)
    median_ns = steps.median_ns()
    if spread is None or normal is None or median_ns is None:
        return None
    points = [] if is_interval else steps.work_series(warmup)
    growth = None if is_interval else trend([(point.step, point.ns) for point in points])  # takes 1.5 ms
    work = None if growth is None or growth.rise <= 0 else work_growth(points, totals.input_sizes)
    change = None if is_interval else step_change(points, totals, names, warmup)
    rises = growth is not None and growth.rise > 0 and change is None
    explained = () if is_interval else totals.coupling.explained()
    max_ns, max_step = steps.longest(warmup)
    inspected_ns = steps.first_ns[steps.warmup_steps(configured_warmup) : warmup]
    p95_ns = steps.p95_ns(warmup)
    return StepStats(
        count=steps.count,
        total_s=steps.total_ns / NS_PER_S,
        median_s=min(median_ns, max_ns) / NS_PER_S,  # a bin's middle may lie above all that is in it
        warmup_count=warmup,
        warmup_s=sum(steps.first_ns[:warmup]) / NS_PER_S,
        inspected_s=max(0.0, sum(inspected_ns) - len(inspected_ns) * normal.mean_ns) / NS_PER_S,
        settled_count=spread.count,
        settled_s=spread.total_ns / NS_PER_S,
        disturbed_count=steps.slowed_count,
        avg_s=normal.mean_ns / NS_PER_S,
        std_s=normal.std_ns / NS_PER_S,
        p95_s=None if p95_ns is None else min(p95_ns, max_ns) / NS_PER_S,
        max_s=max_ns / NS_PER_S,
        max_step=max_step,
        before_s=None if totals.loop_begin_ns is None else max(0, totals.loop_begin_ns - totals.begin_ns) / NS_PER_S,
        rise=growth.rise if growth else None,
        rise_p_value=growth.p_value if growth else None,
        work_unit=work.unit if work else "",
        work_rise=work.rise if work else 0.0,
        unit_rise=work.unit_rise if work else 0.0,
        unit_rise_p_value=work.unit_p_value if work else 1.0,
        explained_by_calls=0.0 if is_interval else explained_by_calls(points),
        explained_by_inputs=0.0 if is_interval else totals.input_work.explained(),
        change=change,
        around_capture=None if is_interval else steps.around_capture.compared(),
        halves=halves(points, totals, names, warmup) if rises else None,
        explained={
            names.get(id) or OTHER: float(part) for id, part in enumerate(explained) if part >= EXPLAINS_AT_LEAST
        },
    )


def epoch_stats(
    number: int,
    totals: Totals,
    names: Mapping[int, str],
    batches: int | None,
    samples: int | None,
    is_complete: bool = True,
) -> EpochStats:
    """Return the stats of one epoch; ``batches`` and ``samples`` are None without a known loader."""
    sections = section_stats(totals, names)
    count = totals.steps.count if batches is None else batches
    self_s = {name: section.self_s for name, section in sections.items() if section.self_s}
    uncovered_s = self_s.pop(OTHER, 0.0) + self_s.pop(OUTSIDE_STEPS, 0.0)
    busy_s = totals.steps.total_ns / NS_PER_S or totals.wall_ns / NS_PER_S
    data_loading = sections.get(DATA_LOADING)
    return EpochStats(
        number=number,
        wall_s=totals.wall_ns / NS_PER_S,
        steps=totals.steps.count,
        batches=count or None,
        samples=samples,
        avg_batch_s=busy_s / count if count else None,
        self_s={**self_s, OTHER: uncovered_s},
        first_fetch_s=None if totals.first_fetch_ns is None else totals.first_fetch_ns / NS_PER_S,
        median_fetch_s=data_loading.p50_s if data_loading else None,
        is_complete=is_complete,
        machine=totals.machine.stats(),
    )
