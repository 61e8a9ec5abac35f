"""The sums of the run, of the interval since the last report, and of each epoch."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np

from training_profiler.aggregation.lines import BEFORE_STEPS, making_shares, phase_shares
from training_profiler.aggregation.loaders import loader_stats
from training_profiler.aggregation.summary import (
    divided_ns,
    epoch_stats,
    line_counts,
    line_stats,
    section_stats,
    settled_line_stats,
    step_stats,
    times_of_lines,
    warmup_steps,
)
from training_profiler.aggregation.totals import Totals, move_late
from training_profiler.base.peaks import MEASURED, peak_of
from training_profiler.base.sections import SectionNames
from training_profiler.base.startup_frames import IMPORT, REST, UNUSED_IMPORT
from training_profiler.base.units import FLOPS_PER_TFLOP, NS_PER_S
from training_profiler.model.interval import StepFlops
from training_profiler.model.location import Location
from training_profiler.model.program import NOTHING_KNOWN, ProgramFacts
from training_profiler.model.snapshot import (
    BETWEEN,
    OTHER,
    OUTSIDE_STEPS,
    EpochStats,
    Health,
    MemoryChange,
    SectionStats,
    Snapshot,
    StartupPart,
    StartupStats,
    Throughput,
    UnsampledWait,
)
from training_profiler.recording.data_loader import LoaderCounts
from training_profiler.statistics.arrays import Floats
from training_profiler.statistics.trend import ChangePoint, change_point

_IMPORTING: Final = (f"{IMPORT} ", f"{UNUSED_IMPORT} ")


def startup_stats(totals: Totals, section_s: Mapping[str, float] | None = None) -> StartupStats | None:
    """Return the parts of the time before the first step; of a run without steps, of all its time.

    The time is exact, and divided by samples. In a run without steps, the times of its sections are exact, too.

    Args:
        totals: of the run.
        section_s: exclusive time of each section, in s.
    """
    samples = {location: count for (id, location), count in totals.lines.items() if id == BEFORE_STEPS}
    begun_ns = totals.loop_begin_ns
    total_s = ((totals.end_ns if begun_ns is None else begun_ns) - totals.begin_ns) / NS_PER_S
    if sum(samples.values()) < 10 or total_s <= 0:  # fewer may be chance
        return None
    used = [each for _, each in totals.lines if each is not None and not each.called.startswith(_IMPORTING)]
    ran = {"torch"}.union(*map(_packages, used))
    parts: dict[str, Counter[str]] = {}
    for location, count in samples.items():
        name = "not sampled" if location is None else location.activity or REST
        line = f"{location.file}:{location.line} {_what(location, ran)}" if location and location.file else ""
        parts.setdefault(name, Counter())[line] += count
    # Of a section its own time, of the others their samples' share of what is left.
    exact_s = section_s if section_s is not None and begun_ns is None else {}
    seconds = {name: exact_s[name] for name in parts if name in exact_s}
    left_s = max(0.0, total_s - sum(seconds.values()))
    others = {name: lines.total() for name, lines in parts.items() if name not in seconds}
    seconds |= {name: left_s * count / sum(others.values()) for name, count in others.items()}
    found = []
    for name, part_s in sorted(seconds.items(), key=lambda part: (-part[1], part[0])):
        whole = parts[name].total()
        lines = [(line, part_s * count / whole) for line, count in parts[name].most_common() if line]
        found.append(StartupPart(name, part_s, tuple(lines[:3])))
    return StartupStats(total_s, begun_ns is not None, tuple(found))


def _packages(location: Location) -> set[str]:
    return {frame.partition("/")[0] for frame in location.inside.split(BETWEEN) if frame}


def _what(location: Location, ran: set[str]) -> str:
    """Return the function of a line, or what it imports; a package that ``ran`` is of use without a name."""
    kind, _, name = location.called.rpartition(" ")
    if not location.called.startswith(_IMPORTING):
        return location.function
    return f"{kind if ran.isdisjoint(_packages(location) | {name.partition('.')[0]}) else IMPORT} {name}"


def sections_of(
    totals: Totals, names: Mapping[int, str], warmup_steps: int | None = None, *, is_interval: bool = False
) -> tuple[dict[str, SectionStats], StartupStats | None]:
    """Return the stats of sections with their parts before and after the training, and the start-up of a run."""
    sections = section_stats(totals, names, warmup_steps, is_interval=is_interval)
    startup = None if is_interval else startup_stats(totals, {name: each.self_s for name, each in sections.items()})
    if totals.loop_begin_ns is None or not totals.steps.count:
        return sections, startup
    left_s = max(0, totals.loop_begin_ns - totals.begin_ns) / NS_PER_S
    sampled = {} if startup is None else {part.name: part.seconds for part in startup.parts}
    for name in sorted(sections, key=OUTSIDE_STEPS.__eq__):  # which has the rest of the start-up
        section = sections[name]
        between_s = max(0.0, section.self_s - section.step_self_s - section.after_s)
        before_s = min(between_s, left_s, left_s if name == OUTSIDE_STEPS else sampled.get(name, 0.0))
        sections[name] = replace(section, before_s=before_s)
        left_s -= before_s
    return sections, startup


def unsampled_waits(
    counts: Mapping[str, Counter[Location | None]], sections: Mapping[str, SectionStats]
) -> tuple[UnsampledWait, ...]:
    """Return the waits for each such work with the line that waits longest, the longest wait first."""
    seen: dict[str, Counter[str]] = {}
    shares: dict[str, float] = {}
    of_loaders: Counter[str] = Counter()
    for name, samples in counts.items():
        if name not in sections or not samples:
            continue
        of_a_sample = sections[name].share / samples.total()
        for location, count in samples.items():
            if location is not None and location.waits_for:
                line = f"{location.file}:{location.line} {location.function}"
                seen.setdefault(location.waits_for, Counter())[line] += count
                shares[location.waits_for] = shares.get(location.waits_for, 0.0) + count * of_a_sample
                of_loaders[location.waits_for] += count if location.making else 0
    waits = [
        UnsampledWait(
            what, lines.most_common(1)[0][0], shares[what], lines.total(), 2 * of_loaders[what] > lines.total()
        )
        for what, lines in seen.items()
        if lines.total() >= 10  # a share of fewer means little
    ]
    return tuple(sorted(waits, key=lambda wait: (-wait.share, wait.what))[:5])


REUSED: Final = 0.5  # batches a step; with fewer, updates share batches, and how many samples each has is not known


def throughput(
    totals: Totals, names: Mapping[int, str], configured_warmup: int | None, program: ProgramFacts = NOTHING_KNOWN
) -> Throughput | None:
    """Return the rates of the stretch; None without steps after warm-up.

    Batches, samples, tokens and FLOPs are per step as on average over the stretch, times steps a second after warm-up.
    Of tokens that no trainer counts, padding is left out where it is known.
    """
    steps = totals.steps
    spread = steps.normal_spread(0 if totals.first_step else warmup_steps(totals, names, configured_warmup))
    if spread is None or not spread.total_ns:
        return None
    steps_per_s = spread.count * NS_PER_S / spread.total_ns
    counted = totals.flops
    flops = counted.flops if counted is not None else None
    tflops = None if flops is None else flops * steps_per_s / FLOPS_PER_TFLOP
    peak = None if counted is None else peak_of(counted.device, counted.dtype)
    if peak is None and counted is not None and counted.measured_tflops is not None:
        peak = counted.measured_tflops, MEASURED
    learned = None if totals.batches and totals.batches <= REUSED * steps.count else totals.samples
    padding = program.padding.padding if program.has_token_ids and program.padding is not None else 0.0
    tokens = (totals.tokens or 0) * (1 - padding)
    model, by = (0.0, "") if counted is None else model_flops(counted, program, (totals.tokens or 0) / steps.count)
    hfu = None if peak is None or tflops is None else tflops / peak[0]
    return Throughput(
        steps_per_s=steps_per_s,
        batches_per_s=None if not totals.batches else totals.batches / steps.count * steps_per_s,
        samples_per_s=None if not learned else learned / steps.count * steps_per_s,
        tokens_per_s=tokens / steps.count * steps_per_s if tokens else None,
        flops_per_step=flops,
        dtype="" if counted is None else counted.dtype,
        device="" if counted is None else counted.device,
        attention="" if counted is None else counted.attention,
        tflops=tflops,
        peak_tflops=None if peak is None else peak[0],
        peak_source="" if peak is None else peak[1],
        mfu=None if hfu is None or not flops else hfu * model / flops,
        mfu_by=by if hfu is not None else "",
        hfu=hfu,
    )


BY_PARAMETERS, BY_OPERATORS = "6N + attention", "3x the forward pass"


def model_flops(counted: StepFlops, program: ProgramFacts, tokens: float) -> tuple[float, str]:
    """Return the FLOPs of a step that its model needs, and by which convention.

    That is 6 a parameter and token, and three times those of attention in the forward pass (PaLM, arXiv 2204.02311,
    appendix B), where the counted operators agree: not with experts, adapters or large tables. Otherwise a backward
    pass takes twice the forward pass, or as much as was executed; recomputation is left out.
    """
    executed = float(counted.flops)
    needed = min(executed, 3.0 * counted.forward) if counted.forward else executed
    numbers = 0 if program.optimizer is None or not program.has_token_ids else program.optimizer.numbers
    by_parameters = 6.0 * numbers * tokens + 3.0 * counted.attention_forward
    is_alike = bool(numbers and tokens and needed) and 0.8 <= by_parameters / needed <= 1.25
    return (by_parameters, BY_PARAMETERS) if is_alike else (needed, BY_OPERATORS if counted.forward else "")


LEAST_BYTES: Final = 16 * 2**20  # between the least and the most; looking for a change of less takes time in vain
LAST: Final = 3  # thirds of the time after a change: growth goes on in the last of them


def memory_change(points: list[tuple[int, float]], device: int | None = None) -> MemoryChange | None:
    """Return since when memory grows, else since when it is more; None where it does neither, or chance may explain it.

    Args:
        points: memory in bytes over the steps of a run.
        device: the index of the accelerator whose memory it is; None for the process.
    """
    steps, memory = np.array(points, np.float64).reshape(-1, 2).T
    if len(points) < 2 or np.ptp(memory) < LEAST_BYTES or not (np.diff(steps) > 0).all():
        return None
    growth = np.diff(memory) / np.diff(steps)  # bytes a step
    found = change_point(growth)
    if found is not None and found.after > max(0.0, found.before):
        after = growth[found.at :]
        if np.median(after[-max(1, len(after) // LAST) :]) > max(0.0, found.before):  # it goes on
            return _change(found, steps, float(memory[found.at]), float(memory[-1]), device, grows=True)
    found = change_point(memory)
    if found is None or not found.is_abrupt or found.after <= found.before:
        return None
    return _change(found, steps, found.before, found.after, device, grows=False)


def _change(
    found: ChangePoint, steps: Floats, before: float, after: float, device: int | None, *, grows: bool
) -> MemoryChange:
    first, at, last = (int(steps[place]) for place in (found.first, found.at, found.last))
    return MemoryChange(at + 1, first + 1, last + 1, before, after, grows, device)


class RunSums:
    """Adds up totals as they arrive, from the running session or from a journal."""

    def __init__(
        self, names: SectionNames, begin_ns: int, warmup_steps: int | None, has_intervals: bool = True
    ) -> None:
        self.run = Totals(begin_ns, 0)
        self.interval = Totals(begin_ns, 0)
        self._has_intervals = has_intervals  # a reader needs none
        self.epochs: list[EpochStats] = []
        self._epoch: Totals | None = None
        self._epoch_number = 0
        self._names = names
        self.warmup_steps = warmup_steps

    def reconfigure(self, warmup_steps: int | None) -> None:
        """Go on with another number of warm-up steps."""
        self.warmup_steps = warmup_steps

    @property
    def steps(self) -> int:
        """Number of complete steps."""
        return self.run.steps.count

    @property
    def is_in_epoch(self) -> bool:
        """Whether an epoch is in progress."""
        return self._epoch is not None

    def add(self, totals: Totals, step_ns: Sequence[int]) -> None:
        """Add the next stretch of time, and the durations of the steps that ended in it."""
        durations_ns, calls = np.array(step_ns, np.int64), np.array(totals.step_calls, np.int64)
        for sums in (self.run, self.interval if self._has_intervals else None, self._epoch):
            if sums is not None:
                sums.add(totals, durations_ns, calls)
                move_late(sums, self._names, totals)
        self.run.history.add(totals.series, len(step_ns), totals.machine, totals.lines, totals.wall_ns)

    def time_of_lines(self) -> tuple[dict[str, SectionStats], dict[str, dict[Location | None, float]]]:
        """Return the sections of the run, and the time of each in ns, divided among its lines."""
        sections, _ = sections_of(self.run, self._names.names)
        return sections, divided_ns(sections, self.run, self._names.names)

    def blocks(self, first: int) -> list[tuple[int, dict[str, int]]]:
        """Return the blocks of steps after the first ones: how many steps, and the time of each section in ns."""
        names = self._names.names
        return [
            (steps, {names.get(id) or OTHER: ns for id, ns in enumerate(times) if ns})
            for steps, times in self.run.history.blocks(first)
        ]

    def new_interval(self) -> None:
        """Start the interval of the next periodic report."""
        self.interval = Totals.with_rows(self.run.end_ns, self.steps, self.run.sections.rows)
        self.interval.flops = self.run.flops

    def begin_epoch(self, number: int) -> None:
        """Start epoch ``number`` at the current end of the sums."""
        self._epoch = Totals.with_rows(self.run.end_ns, self.steps, self.run.sections.rows)
        self._epoch_number = number

    @property
    def epoch_steps(self) -> int:
        """Number of complete steps in the epoch in progress."""
        return 0 if self._epoch is None else self._epoch.steps.count

    def discard_epoch(self) -> None:
        """Discard the epoch in progress: it turned out not to be one."""
        self._epoch = None

    def end_epoch(self, batches: int | None, samples: int | None, is_complete: bool = True) -> EpochStats | None:
        """End the epoch in progress and return its stats; None without one."""
        if self._epoch is None:
            return None
        names = self._names.names
        stats = epoch_stats(self._epoch_number, self._epoch, names, batches, samples, is_complete)
        self.epochs.append(stats)
        self._epoch = None
        return stats

    def snapshot(
        self,
        health: Health,
        *,
        of_interval: bool = False,
        loaders: Sequence[LoaderCounts] = (),
        **beside: Any,
    ) -> Snapshot:
        """Return the stats of the run so far, or of the interval; fields ``beside`` them are None where unknown."""
        totals = self.interval if of_interval else self.run
        sections, startup = sections_of(totals, self._names.names, self.warmup_steps, is_interval=of_interval)
        lines = line_counts(totals, self._names.names)
        warmup = 0 if totals.first_step else self.warmup_steps  # a later interval has no warm-up
        step = step_stats(totals, self._names.names, warmup, is_interval=of_interval)
        times = times_of_lines(totals, self._names.names)
        quantities = self.run.machine.memory_quantities()
        changes = (memory_change(self.run.history.memory(quantity), device) for device, quantity in quantities)
        settled_from = 0 if step is None or of_interval else step.warmup_count
        return Snapshot(
            steps=self.steps,
            first_step=totals.first_step,
            wall_s=totals.wall_ns / NS_PER_S,
            sections=sections,
            lines=line_stats(lines, sections, times),
            settled_lines=settled_line_stats(totals, self._names.names, lines, sections, settled_from),
            phases=phase_shares(lines, sections, times),
            batch_parts=making_shares(lines),
            unsampled_waits=unsampled_waits(lines, sections),
            startup=startup,
            step=step,
            epochs=() if of_interval else tuple(self.epochs),
            machine=totals.machine.stats(has_growth=not of_interval),
            memory_changes=() if of_interval else tuple(change for change in changes if change is not None),
            garbage=totals.garbage.stats(),
            throughput=throughput(totals, self._names.names, self.warmup_steps, beside.get("program") or NOTHING_KNOWN),
            loaders=loader_stats(loaders, totals.loaders),
            health=health,
            with_grad_count=totals.with_grad[0],
            with_grad_s=totals.with_grad[1] / NS_PER_S,
            **{name: value for name, value in beside.items() if value is not None},
        )
