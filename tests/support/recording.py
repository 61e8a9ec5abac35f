"""Stand-ins that tests inject: a clock that only tests move, a manually driven run, and custom statistics."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import pytest

from training_profiler.aggregation.accumulator import Accumulator
from training_profiler.aggregation.run import RunSums
from training_profiler.aggregation.totals import Totals
from training_profiler.base.sections import SectionNames
from training_profiler.model.location import Location, Sample
from training_profiler.model.snapshot import OTHER, EpochStats, Health, SectionStats, Snapshot, StepStats
from training_profiler.recording.data_loader import LoaderCounts
from training_profiler.recording.event_codes import EPOCH_BEGIN, EPOCH_END, STEP_END
from training_profiler.recording.implementation import Implementation, native_implementation, python_implementation
from training_profiler.recording.recorder import Recorder
from training_profiler.sampling.garbage_watch import Collection
from training_profiler.storage.journal import Journal

IMPLEMENTATIONS: Final = ("Python", "C")


def implementation_of(name: str) -> Implementation:
    """Return one of ``IMPLEMENTATIONS``; skip the test if it was not built."""
    if name == "Python":
        return python_implementation("a test asks for it")
    try:
        return native_implementation()
    except ImportError as error:
        pytest.skip(f"the recorder in C cannot be loaded: {error}")


class FakeClock:
    """A clock in ns that stands still until a test moves it."""

    def __init__(self, now_ns: int = 1_000) -> None:
        self.now_ns = now_ns

    def __call__(self) -> int:
        return self.now_ns

    def advance(self, seconds: float) -> None:
        self.now_ns += round(seconds * 1e9)

    def advance_ns(self, ns: int) -> None:
        self.now_ns += ns


class FakeRun:
    """A recorder with its sums, as a session wires them, on a fake clock; optionally with a journal."""

    def __init__(
        self,
        warmup: int | None = None,
        journal: Path | None = None,
        spans: bool = False,
        implementation: Implementation | None = None,
    ) -> None:
        self.clock = FakeClock()
        self.names = SectionNames()
        self.recorder = Recorder(clock=self.clock, names=self.names, implementation=implementation)
        self.recorder.on_full = self.drain
        self.section = self.recorder.section
        self.accumulator = Accumulator(self.names, self.clock(), warmup)
        self.sums = RunSums(self.names, self.clock(), warmup)
        self.writes_spans = spans
        self.loaders: list[LoaderCounts] = []
        self.samples: list[Sample] = []
        self.collections: list[Collection] = []
        self.collected_since_ns: int | None = None  # since when all of them are recorded
        self.journal = None if journal is None else Journal(journal, 0, self.names, self.clock(), warmup)

    def spend(self, name: str, seconds: float) -> None:
        """Record one span of a section."""
        with self.section(name):
            self.clock.advance(seconds)

    def sample_line(self, location: Location | None, times: int = 1) -> None:
        """Sample the training thread at ``location``, now."""
        self.samples += [(self.clock(), location)] * times

    def collect(self, seconds: float, generation: int = 2, is_asked: bool = False) -> None:
        """Record a garbage collection on the training thread, now."""
        begin_ns = self.clock()
        self.clock.advance(seconds)
        self.collections.append(Collection(begin_ns, self.clock(), generation, is_asked))

    def step(self, **seconds: float) -> None:
        """Record one step with the given sections."""
        for name, section_s in seconds.items():
            self.spend(name, section_s)
        self.recorder.mark(STEP_END)

    def steps(self, count: int, **seconds: float) -> None:
        """Record ``count`` steps that are alike."""
        for _ in range(count):
            self.step(**seconds)

    def begin_epoch(self, number: int) -> None:
        self.recorder.mark(EPOCH_BEGIN)
        self.flush()
        self.sums.begin_epoch(number)
        if self.journal:
            self.journal.append(self.journal.lines.epoch_begin(number))

    def end_epoch(self, batches: int | None = None, samples: int | None = None) -> EpochStats | None:
        self.recorder.mark(EPOCH_END)
        self.flush()
        if self.journal:
            self.journal.append(self.journal.lines.epoch_end(batches, samples, True))
        return self.sums.end_epoch(batches, samples)

    def drain(self) -> None:
        samples, self.samples = self.samples, []
        collections, self.collections = self.collections, []
        self.accumulator.add_collections(collections, self.collected_since_ns)
        self.accumulator.add(self.recorder.drain(), self.recorder.thread_id(), samples)

    def flush(self, is_last: bool = False) -> None:
        """Drain, and add the totals to the run and the journal."""
        self.drain()
        totals, step_ns = self.accumulator.pop_totals()
        self.sums.add(totals, step_ns)
        if self.journal:
            self.journal.append(
                self.journal.lines.interval(totals, step_ns, Health(), self.loaders, **self.of_interval())
            )
            steps = self.accumulator.step_spans.pop(step_ns, is_last)
            if steps and self.writes_spans:
                self.journal.append(self.journal.lines.spans(steps))

    def of_interval(self) -> dict[str, Any]:
        """Return what the journal has of each interval besides its totals."""
        return {}

    def totals(self) -> Totals:
        """Return the totals since the last flush."""
        self.drain()
        return self.accumulator.totals

    def snapshot(self, **options: Any) -> Snapshot:
        self.flush()
        return self.sums.snapshot(Health(), loaders=self.loaders, **options)


def collecting(**options: Any) -> FakeRun:
    """Return a run in which all garbage collections are recorded."""
    run = FakeRun(**options)
    run.collected_since_ns = run.clock()
    return run


def section_stats(
    name: str,
    share: float = 0.0,
    *,
    count: int = 100,
    avg_s: float | None = 0.1,
    parent: str | None = None,
    step_total_s: float = 0.0,
    **others: Any,
) -> SectionStats:
    """Return the statistics of a section. Missing values follow from ``count`` and ``avg_s``."""
    total_s = others.pop("total_s", count * (avg_s or 0.0))
    return SectionStats(
        name=name,
        count=count,
        total_s=total_s,
        self_s=others.pop("self_s", total_s),
        share=share,
        parent=parent,
        avg_s=avg_s,
        step_total_s=step_total_s,
        settled_total_s=others.pop("settled_total_s", step_total_s),
        **others,
    )


def step_stats(count: int = 100, avg_s: float = 0.1, **others: Any) -> StepStats:
    """Return the statistics of even steps with the given changes."""
    stats: dict[str, Any] = {
        "count": count,
        "total_s": count * avg_s,
        "median_s": avg_s,
        "warmup_count": 0,
        "warmup_s": 0.0,
        "settled_count": count,
        "settled_s": count * avg_s,
        "avg_s": avg_s,
        "std_s": 0.0,
        "max_s": avg_s,
        "max_step": 1,
    }
    return StepStats(**{**stats, **others})


def snapshot_of(shares: Mapping[str, float], *, steps: int = 100, step_s: float = 0.1, **step: Any) -> Snapshot:
    """Return a run of even steps that consist of sections with these shares; ``other`` takes the rest."""
    total_s = steps * step_s
    sections = {
        name: section_stats(
            name, share, count=steps, avg_s=share * step_s, step_total_s=share * total_s, step_self_s=share * total_s
        )
        for name, share in shares.items()
    }
    rest_s = total_s * (1 - sum(shares.values()))
    sections.setdefault(
        OTHER,
        section_stats(
            OTHER,
            rest_s / total_s if total_s else 0.0,
            count=0,
            avg_s=None,
            total_s=rest_s,
            step_total_s=rest_s,
            self_s=rest_s,
            step_self_s=rest_s,
            settled_total_s=rest_s,
        ),
    )
    return Snapshot(
        steps=steps, wall_s=total_s, sections=sections, step=step_stats(steps, step_s, **step) if steps else None
    )
