"""The sums of the run, of the interval since the last report, and of each epoch."""

from collections.abc import Mapping, Sequence

from training_profiler.aggregation.gradient_sync import move_late
from training_profiler.aggregation.hot_lines import making_shares, phase_shares
from training_profiler.aggregation.loaders import loader_stats
from training_profiler.aggregation.memory_change import memory_change
from training_profiler.aggregation.startup import startup_stats
from training_profiler.aggregation.step_totals import columns
from training_profiler.aggregation.summary import (
    epoch_stats,
    line_counts,
    line_stats,
    section_stats,
    settled_line_stats,
    step_stats,
    times_of_lines,
)
from training_profiler.aggregation.throughput import throughput
from training_profiler.aggregation.totals import Totals
from training_profiler.aggregation.unseen_waits import unseen_waits
from training_profiler.base.units import NS_PER_S
from training_profiler.recording.data_loader import LoaderCounts
from training_profiler.recording.section_names import SectionNames
from training_profiler.snapshot.program import ProgramFacts
from training_profiler.snapshot.snapshot import (
    AllRanksStats,
    AttemptStats,
    DeviceTimingStats,
    EpochStats,
    GradientSyncStats,
    Health,
    MemoryChange,
    Price,
    Snapshot,
)


class RunSums:
    """Adds up totals as they arrive, from the running session or from a journal."""

    def __init__(
        self, names: SectionNames, begin_ns: int, warmup_steps: int | None, has_intervals: bool = True
    ) -> None:
        self.run = Totals(begin_ns)
        self.interval = Totals(begin_ns)
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
        durations_ns, calls = columns(step_ns, totals.step_calls)
        for sums in (self.run, self.interval if self._has_intervals else None, self._epoch):
            if sums is not None:
                sums.add(totals, durations_ns, calls)
                move_late(sums, self._names, totals)
        self.run.history.add(totals.series, len(step_ns), totals.machine, totals.lines, totals.wall_ns)

    def _memory_changes(self) -> tuple[MemoryChange, ...]:
        quantities = self.run.machine.memory_quantities()
        found = (memory_change(self.run.history.memory(quantity), device) for device, quantity in quantities)
        return tuple(change for change in found if change is not None)

    def new_interval(self) -> None:
        """Start the interval of the next periodic report."""
        self.interval = Totals(self.run.end_ns, self.steps, self.run.sections.rows)
        self.interval.flops = self.run.flops

    def begin_epoch(self, number: int) -> None:
        """Start epoch ``number`` at the current end of the sums."""
        self._epoch = Totals(self.run.end_ns, self.steps, self.run.sections.rows)
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
        open_sections: Sequence[str] = (),
        run_folder: str | None = None,
        ended_by: str | None = None,
        thresholds: Mapping[str, float] | None = None,
        price: Price | None = None,
        device: DeviceTimingStats | None = None,
        program: ProgramFacts | None = None,
        ranks: AllRanksStats | None = None,
        exchange: GradientSyncStats | None = None,
        attempts: Sequence[AttemptStats] = (),
    ) -> Snapshot:
        """Return the stats of the run so far, or of the interval."""
        totals = self.interval if of_interval else self.run
        sections = section_stats(totals, self._names.names, self.warmup_steps)
        lines = line_counts(totals, self._names.names)
        warmup = 0 if totals.first_step else self.warmup_steps  # a later interval has no warm-up
        step = step_stats(totals, self._names.names, warmup, is_interval=of_interval)
        self_s = {name: section.self_s for name, section in sections.items()}
        times = times_of_lines(totals, self._names.names)
        settled_from = 0 if step is None or of_interval else step.warmup_count
        return Snapshot(
            steps=self.steps,
            first_step=totals.first_step,
            wall_s=totals.wall_ns / NS_PER_S,
            sections=sections,
            lines=line_stats(lines, sections, times),
            settled_lines=settled_line_stats(totals, self._names.names, lines, sections, settled_from),
            phases=phase_shares(lines, sections, times),
            making=making_shares(lines),
            unseen=unseen_waits(lines, sections),
            startup=None if of_interval else startup_stats(totals, self_s),
            step=step,
            epochs=() if of_interval else tuple(self.epochs),
            device=device,
            program=program or ProgramFacts(),
            machine=totals.machine.stats(has_growth=not of_interval),
            memory_changes=() if of_interval else self._memory_changes(),
            garbage=totals.garbage.stats(),
            throughput=throughput(totals, self._names.names, self.warmup_steps),
            loaders=loader_stats(loaders, totals.loaders),
            health=health,
            open_sections=tuple(open_sections),
            run_folder=run_folder,
            ended_by=ended_by,
            ranks=ranks,
            with_grad_count=totals.with_grad[0],
            with_grad_s=totals.with_grad[1] / NS_PER_S,
            exchange=exchange,
            attempts=tuple(attempts),
            thresholds=thresholds or {},
            price=price,
        )
