"""Collects what this rank tells the others."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np

from training_profiler.aggregation.histogram import Ints
from training_profiler.aggregation.lines import IN_STEPS
from training_profiler.aggregation.step_totals import FIRST_STEPS
from training_profiler.aggregation.summary import SAMPLES_NEEDED, warmup_steps
from training_profiler.aggregation.totals import Totals
from training_profiler.ranks.summary import (
    MOST_BUCKETS,
    UNKNOWN_NS,
    RankSection,
    RankSummary,
    StepTimeBucket,
    SyncPoint,
)
from training_profiler.recording.gradient_sync import BLOCK_STEPS, GradientSyncTotals, block_stride, is_compared
from training_profiler.recording.known_sections import BACKWARD_PASS, SYNCHRONIZATION
from training_profiler.recording.section_names import SectionNames, printable
from training_profiler.sampling.line_sampler import Location
from training_profiler.snapshot.ranks import GradientSyncStats, RankId
from training_profiler.snapshot.snapshot import OTHER, PROFILER, SPANS_NEEDED
from training_profiler.units import NS_PER_S


class ComparedBlocks:
    """The steps that all ranks compare, as far as this rank has made them; at most 8 blocks of 16."""

    def __init__(self) -> None:
        self._seen: dict[int, list[int | None]] = {}  # first step -> what seams saw, of steps that are complete
        self._exchanged: dict[int, dict[int, int]] = {}  # first step -> {step in the block: exposed exchange}
        self._last_exchanged = -1

    def add(self, rows: Mapping[int, Ints], sync_id: int, exchanged: Iterable[tuple[int, int]]) -> None:
        """Add exclusive times of complete steps, of which column ``sync_id`` counts, and exchange that was read.

        Exchange of a step is known a step later, and may come after the step's own times.
        """
        for step, row in rows.items():
            first = step - step % BLOCK_STEPS
            ns = int(row[sync_id]) if 0 < sync_id < len(row) else 0
            self._seen.setdefault(first, [None] * BLOCK_STEPS)[step - first] = ns
        for step, ns in exchanged:
            self._last_exchanged = max(self._last_exchanged, step)
            if is_compared(step):
                first = step - step % BLOCK_STEPS
                of_block = self._exchanged.setdefault(first, {})
                of_block[step - first] = of_block.get(step - first, 0) + ns
        blocks = 1 + max([*self._seen, *self._exchanged], default=0) // BLOCK_STEPS
        stride = BLOCK_STEPS * block_stride(blocks)
        for first in [first for first in (*self._seen, *self._exchanged) if first % stride]:
            self._seen.pop(first, None)
            self._exchanged.pop(first, None)

    def told(self) -> dict[int, list[int]]:
        """Return the whole blocks: first step -> synchronization of 16 steps, -1 where it is not known.

        Where DDP exchanges, a step without a word of that is not known to have had none.
        """
        told = {}
        for first, seen in self._seen.items():
            if None in seen:
                continue
            if self._last_exchanged < 0:
                told[first] = [ns or 0 for ns in seen]
            elif self._last_exchanged >= first + BLOCK_STEPS - 1:
                exchanged = self._exchanged.get(first, {})
                told[first] = [
                    (ns or 0) + exchanged[at] if at in exchanged else UNKNOWN_NS for at, ns in enumerate(seen)
                ]
        return told


PLACE_SHARE: Final = 0.05  # own share of the wall time from which on a section's hottest line is told
MOST_SECTIONS: Final = 40  # told, those with most time: what is told has to stay small


class RankSummaryBuilder:
    """Sums of this rank; only grows. ``warmup_steps`` is what the user told; None leaves it to the steps."""

    def __init__(self, names: SectionNames) -> None:
        self.warmup_steps: int | None = None
        self._names = names
        self._ids: dict[str, int] = {}
        self._number = 0
        self._exchanges = GradientSyncTotals()
        self._beside_ns = 0  # exposed exchange that no section has, because no host waits for it
        self._paces: list[StepTimeBucket] = []
        self._steps_a_pace = 1
        self._sync_before_ns = 0  # of stretches without a step's end
        self._blocks = ComparedBlocks()
        # The first steps one by one, as warm-up is known when it is over: exclusive times, and exposed exchange.
        self._early_ns = np.zeros((FIRST_STEPS, 1), np.int64)
        self._early_exchange_ns = np.zeros(FIRST_STEPS, np.int64)
        self._samples: Counter[int] = Counter()
        self._of_line: Counter[tuple[int, Location]] = Counter()
        self._hottest: dict[int, Location] = {}

    def reconfigure(self, warmup_steps: int | None) -> None:
        """Go on with another number of warm-up steps; None leaves it to the steps' durations."""
        self.warmup_steps = warmup_steps

    def add(self, totals: Totals, step_ns: Sequence[int], exchanged: GradientSyncTotals) -> None:
        """Add a flush interval, and what DDP exchanged in it."""
        sync_id = self._id_of(SYNCHRONIZATION)
        self._blocks.add(totals.compared, sync_id, exchanged.of_steps)
        self._add_early(totals.compared, exchanged.of_steps)
        self._add_exchanged(exchanged)
        in_steps_ns = totals.sections.step_self_ns
        self._sync_before_ns += int(in_steps_ns[sync_id]) if 0 < sync_id < len(in_steps_ns) else 0
        self._sync_before_ns += totals.late_exchange_ns
        if not exchanged.is_on_host:
            self._sync_before_ns += exchanged.exposed_ns
        if step_ns:
            taken_ns = int(totals.steps.total_ns)
            self._add_pace(StepTimeBucket(len(step_ns), taken_ns, min(taken_ns, self._sync_before_ns)))
            self._sync_before_ns = 0
        self._add_lines(totals)

    def _id_of(self, name: str) -> int:
        """Return the id of a section; 0 as long as there is none of that name."""
        names = self._names.names
        if len(self._ids) != len(names):
            self._ids = {name: id for id, name in list(names.items())}
        return self._ids.get(name, 0)

    def _add_early(self, rows: Mapping[int, Ints], exchanged: Sequence[tuple[int, int]]) -> None:
        for step, row in rows.items():
            if step < FIRST_STEPS:
                missing = len(row) - self._early_ns.shape[1]
                if missing > 0:
                    self._early_ns = np.pad(self._early_ns, ((0, 0), (0, missing)))
                self._early_ns[step, : len(row)] = row
        for step, ns in exchanged:
            if 0 <= step < FIRST_STEPS:
                self._early_exchange_ns[step] += ns

    def _add_exchanged(self, later: GradientSyncTotals) -> None:
        so_far = self._exchanges
        self._exchanges = GradientSyncTotals(
            so_far.exchanges + later.exchanges,
            so_far.sampled + later.sampled,
            so_far.total_ns + later.total_ns,
            so_far.hidden_ns + later.hidden_ns,
            so_far.is_on_host and later.is_on_host,
        )
        if not later.is_on_host:
            self._beside_ns += later.exposed_ns

    def _add_pace(self, pace: StepTimeBucket) -> None:
        if self._paces and self._paces[-1].steps + pace.steps <= self._steps_a_pace:
            self._paces[-1] = _together(self._paces[-1], pace)
        else:
            self._paces.append(pace)
        if len(self._paces) > MOST_BUCKETS:
            pairs = zip(self._paces[::2], self._paces[1::2], strict=False)
            left_over = self._paces[len(self._paces) // 2 * 2 :]
            self._paces = [_together(one, next_one) for one, next_one in pairs] + left_over
            self._steps_a_pace = max(one.steps for one in self._paces)

    def _add_lines(self, totals: Totals) -> None:
        for (id, location), count in totals.lines.items():
            self._samples[id] += count
            if location is not None:
                line = location._replace(waits_in="")
                self._of_line[id, line] += count
                hottest = self._hottest.get(id)
                if hottest is None or self._of_line[id, line] > self._of_line[id, hottest]:
                    self._hottest[id] = line

    def gradient_sync_stats(self) -> GradientSyncStats | None:
        """Return the figures of DDP's exchange of gradients so far; None where none was seen or its time is unknown."""
        seen = self._exchanges
        if not seen.exchanges or not seen.sampled or not seen.total_ns:
            return None
        return GradientSyncStats(
            count=seen.exchanges,
            sampled=seen.sampled,
            total_s=seen.total_ns / seen.exchanges / NS_PER_S,
            overlap=min(1.0, max(0.0, seen.hidden_ns / seen.total_ns)),
            exposed_s=seen.exposed_ns / seen.exchanges / NS_PER_S,
        )

    def sums(self, who: RankId, run: Totals, names: Mapping[int, str], **rest: Any) -> RankSummary:
        """Return what this rank has measured so far; ``rest`` are fields of ``RankSummary`` known elsewhere."""
        self._number += 1
        warmup = warmup_steps(run, self.warmup_steps)
        spread = run.steps.spread(warmup)
        settled_steps = 0 if spread is None else spread.count
        settled_ns = 0 if spread is None else round(spread.total_ns)
        beside_ns = self._beside_ns * settled_steps // max(1, run.steps.count)
        sections = self._sections(run, names, warmup, settled_steps, beside_ns)
        sync = sections.get(SYNCHRONIZATION, RankSection())
        seen = self._exchanges
        return RankSummary(
            who=replace(who, host=printable(who.host)),
            number=self._number,
            steps=run.steps.count,
            settled_steps=settled_steps,
            settled_ns=settled_ns,
            sync_ns=min(settled_ns, (sync.device_own_ns or sync.own_step_ns) + beside_ns),
            knows_sync=_knows_sync(sections, seen),
            sections=sections,
            exchanges=seen.exchanges,
            sampled=seen.sampled,
            exchange_ns=seen.total_ns,
            exchange_hidden_ns=seen.hidden_ns,
            step_times=list(self._paces),
            blocks=self._blocks.told(),
            places=self._places(run, names, sections),
            **rest,
        )

    def _sections(
        self, run: Totals, names: Mapping[int, str], warmup: int, settled_steps: int, beside_ns: int
    ) -> dict[str, RankSection]:
        sums, early_ns, early_own_ns = run.sections, *self._warmup_ns(run, warmup)
        step_ns = np.maximum(sums.step_total_ns - early_ns, 0)
        own_ns = np.maximum(sums.step_self_ns - early_own_ns, 0)
        device_ns = _device_step_ns(run, settled_steps)
        parents = _main_parents(run)
        device_own_ns = device_ns.copy()
        for id, parent in parents.items():  # what is nested in a section by the device's clock as well
            if device_ns[parent]:
                device_own_ns[parent] -= device_ns[id]
        backward = self._id_of(BACKWARD_PASS)
        if backward and device_own_ns[backward]:
            device_own_ns[backward] -= beside_ns
        device_own_ns = np.maximum(device_own_ns, device_ns > 0)
        seen = np.flatnonzero((sums.count > 0) | (sums.step_self_ns > 0)).tolist()
        told = [id for id in seen if names.get(id) and not names[id].startswith(PROFILER)]
        told.sort(key=lambda id: -int(sums.total_ns[id]))
        columns = [
            array.tolist()
            for array in (
                sums.count, sums.total_ns, step_ns, own_ns, sums.device_count, sums.device_ns, device_ns, device_own_ns,
            )
        ]  # fmt: skip
        sections = {names[id]: RankSection(*(column[id] for column in columns)) for id in told[:MOST_SECTIONS]}
        if own_ns[0]:
            other = sections.get(OTHER, RankSection())
            uncovered_ns = int(own_ns[0])
            sections[OTHER] = other._replace(
                step_ns=other.step_ns + uncovered_ns, own_step_ns=other.own_step_ns + uncovered_ns
            )
        return sections

    def _warmup_ns(self, run: Totals, warmup: int) -> tuple[Ints, Ints]:
        """Return the time of each section in the first steps, with those nested in it and without."""
        rows = run.sections.rows
        early_ns, own_ns = np.zeros(rows, np.int64), np.zeros(rows, np.int64)
        early_ns[: run.early_ns.shape[1]] = run.early_ns[:warmup].sum(axis=0)[:rows]
        own_ns[: self._early_ns.shape[1]] = self._early_ns[:warmup].sum(axis=0)[:rows]
        backward, sync = self._id_of(BACKWARD_PASS), self._id_of(SYNCHRONIZATION)
        if self._exchanges.is_on_host and 0 < backward < rows and 0 < sync < rows:
            moved_ns = min(int(self._early_exchange_ns[:warmup].sum()), int(own_ns[backward]))
            own_ns[backward] -= moved_ns
            own_ns[sync] += moved_ns
        return early_ns, own_ns

    def _places(self, run: Totals, names: Mapping[int, str], sections: Mapping[str, RankSection]) -> dict[str, str]:
        at_least_ns = PLACE_SHARE * run.wall_ns
        self_ns = run.sections.self_ns
        places = {}
        for id, line in self._hottest.items():
            name = OTHER if id == IN_STEPS else names.get(id, "")
            own_ns = int(run.sections.step_self_ns[0]) if id == IN_STEPS else int(self_ns[id]) if id > 0 else 0
            if name in sections and own_ns >= at_least_ns and self._samples[id] >= SAMPLES_NEEDED:
                places[name] = printable(f"{line.file}:{line.line} {line.function}")
        return places


def _together(one: StepTimeBucket, other: StepTimeBucket) -> StepTimeBucket:
    return StepTimeBucket(one.steps + other.steps, one.step_ns + other.step_ns, one.sync_ns + other.sync_ns)


def _device_step_ns(run: Totals, settled_steps: int) -> Ints:
    """Return what sections take of the accelerator within steps after warm-up; 0 where that is not known.

    Spans within steps times their mean, as ``Snapshot.total_of_step_s`` has it.
    """
    sums = run.sections
    is_known = (sums.device_count >= SPANS_NEEDED) & (sums.total_ns > 0)
    if not is_known.any() or not run.steps.count:
        return np.zeros(sums.rows, np.int64)
    spans_in_steps = sums.count * sums.step_total_ns / np.maximum(sums.total_ns, 1)
    mean_ns = sums.device_ns / np.maximum(sums.device_count, 1)
    settled_ns = spans_in_steps * settled_steps / run.steps.count * mean_ns
    return np.where(is_known, settled_ns, 0).astype(np.int64)


def _main_parents(run: Totals) -> dict[int, int]:
    """Return the section around most spans of each section that has one."""
    most: dict[int, tuple[int, int]] = {}
    for (parent, id), spans in run.sections.parents.items():
        if parent != id and spans > most.get(id, (0, 0))[0]:
            most[id] = (spans, parent)
    return {id: parent for id, (_, parent) in most.items() if parent}


def _knows_sync(sections: Mapping[str, RankSection], seen: GradientSyncTotals) -> bool:
    """Return whether time that ranks wait for each other can be told from their work.

    Not where DDP exchanges and does not say for how long, nor where the host alone was timed and the device works.
    """
    if seen.exchanges:
        return seen.sampled > 0
    sync = sections.get(SYNCHRONIZATION)
    if sync is None or not sync.step_ns:
        return False
    return bool(sync.device_step_ns) or not sections.get(BACKWARD_PASS, RankSection()).device_step_ns


def sync_points(seen: Iterable[tuple[str, int, int]]) -> list[SyncPoint]:
    """Return meetings as they are told."""
    return [SyncPoint(*meeting) for meeting in seen]
