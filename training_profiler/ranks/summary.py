"""The summary a rank sends to rank 0, and how it is made: small enough for one message every few seconds."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any, Final, NamedTuple

import msgspec
import numpy as np

from training_profiler.aggregation.lines import BEFORE_STEPS, ENOUGH, IN_STEPS
from training_profiler.aggregation.summary import warmup_steps
from training_profiler.aggregation.totals import Totals
from training_profiler.base.sections import BACKWARD_PASS, SYNCHRONIZATION, WITHIN, SectionNames
from training_profiler.base.text import printable
from training_profiler.base.units import NS_PER_S
from training_profiler.model.bounds import fit
from training_profiler.model.loader_workers import SamplePrints
from training_profiler.model.location import Location
from training_profiler.model.ranks import (
    BLOCK_STEPS,
    FIRST_STEPS,
    GradientSyncStats,
    GradientSyncTotals,
    RankId,
    UnusedSearch,
    block_stride,
    is_compared,
)
from training_profiler.model.snapshot import OTHER, PROFILER, SPANS_NEEDED
from training_profiler.statistics.arrays import Ints

SCHEMA: Final = 1
MOST_BUCKETS: Final = 32
UNKNOWN_NS: Final = -1  # in a block: the time of this step is unknown

MAX_COUNT: Final = 2**62  # leaves room for sums over all ranks
Count = Annotated[int, msgspec.Meta(ge=0, le=MAX_COUNT)]
BlockNs = Annotated[int, msgspec.Meta(ge=UNKNOWN_NS, le=MAX_COUNT)]
MOST_ITEMS: Final = 1_000  # of any kind; a rank sends at most 40 sections, 32 buckets and 8 blocks
_Few: Final = msgspec.Meta(max_length=MOST_ITEMS)
Block = Annotated[Sequence[BlockNs], msgspec.Meta(min_length=BLOCK_STEPS, max_length=BLOCK_STEPS)]


class RankSection(NamedTuple):
    """One section on one rank: sums in ns, on the training thread."""

    spans: Count = 0
    total_ns: Count = 0
    step_ns: Count = 0  # within steps after warm-up, nested sections included
    own_step_ns: Count = 0  # the same without nested sections
    device_count: Count = 0
    device_ns: Count = 0
    device_step_ns: Count = 0  # like step_ns, on the accelerator's clock; 0 if unknown
    device_own_ns: Count = 0  # like own_step_ns, on the accelerator's clock


class StepTimeBucket(NamedTuple):
    """Consecutive steps and their time."""

    steps: Count
    step_ns: Count
    sync_ns: Count


class RankSyncPoint(NamedTuple):
    """A barrier that every rank passes; no rank leaves before the last has entered. Times are the rank's wall clock."""

    key: str  # the same on every rank
    enter_ns: Count
    leave_ns: Count


class RankSummary(msgspec.Struct, frozen=True):
    """The measurements of one rank since its run began. Sums only grow, so a lost message does no harm."""

    who: RankId
    number: Count = 0  # summaries sent before this one
    begin_ns: Count = 0  # wall clock at the begin of the run
    sent_ns: Count = msgspec.field(default=0, name="told_ns")  # wall clock at the end of these measurements
    steps: Count = 0
    settled_steps: Count = 0  # after warm-up
    settled_ns: Count = 0  # the time of these
    sync_ns: Count = 0  # the part of settled_ns in ``synchronization`` and in exposed gradient sync
    knows_sync: bool = False  # communication between ranks was seen, and its time is known
    sections: Annotated[Mapping[str, RankSection], _Few] = {}
    exchanges: Count = 0  # gradient syncs of DDP
    sampled: Count = 0  # how many of these DDP timed
    exchange_ns: Count = 0
    exchange_hidden_ns: Count = 0  # overlapped with the backward pass
    # All steps, in order.
    step_times: Annotated[Sequence[StepTimeBucket], _Few] = msgspec.field(default=(), name="paces")
    blocks: Annotated[Mapping[Count, Block], _Few] = {}  # first step -> synchronization of 16 steps, ns
    # Section -> "file:line function".
    hottest_lines: Annotated[Mapping[str, str], _Few] = msgspec.field(default={}, name="places")
    sync_points: Annotated[Sequence[RankSyncPoint], _Few] = msgspec.field(default=(), name="meetings")
    inside: Annotated[Sequence[str], _Few] = ()  # open sections, outermost first
    is_final: bool = False
    ended_by: str | None = None
    trained: SamplePrints | msgspec.UnsetType = msgspec.UNSET  # samples of early steps
    searched: UnusedSearch | msgspec.UnsetType = msgspec.UNSET  # of DDP
    input_elements: Count | msgspec.UnsetType = msgspec.UNSET  # of the largest input of a forward pass, mean

    def to_data(self) -> dict[str, Any]:
        """Return the summary as plain data that JSON represents exactly."""
        return {"schema": SCHEMA, **msgspec.to_builtins(self, str_keys=True)}


def gradient_sync_stats(count: int, sampled: int, total_ns: int, hidden_ns: int) -> GradientSyncStats | None:
    """Return the stats of DDP's gradient syncs, of which some were timed; None if there was none or none was timed."""
    if not count or not sampled or not total_ns:
        return None
    hidden_ns = min(total_ns, max(0, hidden_ns))
    exposed_s = (total_ns - hidden_ns) / count / NS_PER_S
    return GradientSyncStats(count, sampled, total_ns / count / NS_PER_S, hidden_ns / total_ns, exposed_s)


_WITH_TEXTS: Final = ("who", "sections", "hottest_lines", "sync_points", "inside", "ended_by")
_REQUIRED: Final = frozenset({"who", "sections", "paces", "blocks", "places", "meetings", "inside", "is_final"})


def rank_summary_from_data(data: Mapping[str, Any]) -> RankSummary:
    """Return the summary that ``to_data`` was called on; unknown keys and columns are ignored.

    Raises:
        ValueError, KeyError, TypeError, AttributeError: the data has another form, or comes from another version.
    """
    if data["schema"] != SCHEMA:
        raise ValueError(f"schema {data['schema']!r} is not supported, this version reads {SCHEMA}")
    missing = _REQUIRED - data.keys()
    if missing:
        raise KeyError(*sorted(missing))
    who = data["who"]
    numbers = (who["rank"], who["world_size"], who.get("attempt", 0), who.get("node") or 0, who.get("local_rank") or 0)
    if not all(0 <= number <= MAX_COUNT for number in numbers):
        raise ValueError(f"rank {who['rank']} of {who['world_size']} is out of range")
    columns = len(RankSection._fields)
    known = {**data, "sections": {name: row[:columns] for name, row in data["sections"].items()}}
    summary = msgspec.convert(known, RankSummary, str_keys=True)
    # Another process may send anything: all text is made fit for a terminal.
    return msgspec.structs.replace(
        summary,
        **{name: fit(getattr(summary, name)) for name in _WITH_TEXTS},
    )


class ComparedBlocks:
    """Synchronization in the steps that all ranks compare, as far as this rank has come: at most 8 blocks of 16."""

    def __init__(self) -> None:
        # First step -> synchronization of its steps, measured in complete steps, and DDP's exposed gradient sync.
        self._blocks: dict[int, Ints] = {}
        self._last_synced = -1

    def _block(self, step: int) -> Ints:
        unknown = np.full((2, BLOCK_STEPS), UNKNOWN_NS, np.int64)
        return self._blocks.setdefault(step - step % BLOCK_STEPS, unknown)

    def add(self, rows: Mapping[int, Ints], sync_id: int, synced: Iterable[tuple[int, int]]) -> None:
        """Add exclusive times of complete steps, of which column ``sync_id`` counts, and DDP's gradient sync.

        Gradient sync is known one step late, so it may arrive after the step's own times.
        """
        for step, row in rows.items():
            self._block(step)[0, step % BLOCK_STEPS] = row[sync_id] if 0 < sync_id < len(row) else 0
        for step, ns in synced:
            self._last_synced = max(self._last_synced, step)
            if is_compared(step):
                exposed_ns, at = self._block(step)[1], step % BLOCK_STEPS
                exposed_ns[at] = max(0, exposed_ns[at]) + ns
        stride = BLOCK_STEPS * block_stride(1 + max(self._blocks, default=0) // BLOCK_STEPS)
        self._blocks = {first: block for first, block in self._blocks.items() if not first % stride}

    def complete_blocks(self) -> dict[int, list[int]]:
        """Return the complete blocks: first step -> synchronization of 16 steps, -1 for unknown.

        With DDP, a step without reported gradient sync is unknown, not zero.
        """
        blocks = {}
        for first, (measured_ns, exposed_ns) in self._blocks.items():
            if (measured_ns == UNKNOWN_NS).any() or 0 <= self._last_synced < first + BLOCK_STEPS - 1:
                continue
            if self._last_synced >= 0:
                measured_ns = np.where(exposed_ns == UNKNOWN_NS, UNKNOWN_NS, measured_ns + exposed_ns)
            blocks[first] = measured_ns.tolist()
        return blocks


MIN_LINE_SHARE: Final = 0.05  # of the wall time, in self time; below it the section's hottest line is left out
MOST_SECTIONS: Final = 40  # those with most time; summaries have to stay small


class RankSummaryBuilder:
    """The sums of this rank, which only grow. ``warmup_steps`` is the user's setting; None leaves it to the steps."""

    def __init__(self, names: SectionNames) -> None:
        self.warmup_steps: int | None = None
        self._names = names
        self._ids: dict[str, int] = {}
        self._number = 0
        self._synced = GradientSyncTotals()
        self._hidden_from_host_ns = 0  # exposed gradient sync that no host waits for, so that it is in no section
        self._step_times: list[StepTimeBucket] = []
        self._steps_per_bucket = 1
        self._sync_before_ns = 0  # of stretches in which no step ended
        self._blocks = ComparedBlocks()
        # The first steps one by one, because warm-up is only known afterwards: exclusive times and exposed sync.
        self._early_ns = np.zeros((FIRST_STEPS, 1), np.int64)
        self._early_sync_ns = np.zeros(FIRST_STEPS, np.int64)
        self._samples: Counter[int] = Counter()
        self._of_line: Counter[tuple[int, Location]] = Counter()
        self._hottest: dict[int, Location] = {}

    def reconfigure(self, warmup_steps: int | None) -> None:
        """Continue with another number of warm-up steps; None leaves it to the steps."""
        self.warmup_steps = warmup_steps

    def add(self, totals: Totals, step_ns: Sequence[int], synced: GradientSyncTotals) -> None:
        """Add a flush interval, and DDP's gradient sync in it."""
        sync_id = self._id_of(SYNCHRONIZATION)
        self._blocks.add(totals.compared, sync_id, synced.of_steps)
        self._add_early(totals.compared, synced.of_steps)
        so_far = self._synced
        self._synced = GradientSyncTotals(
            so_far.exchanges + synced.exchanges,
            so_far.sampled + synced.sampled,
            so_far.total_ns + synced.total_ns,
            so_far.hidden_ns + synced.hidden_ns,
            so_far.is_on_host and synced.is_on_host,
        )
        in_steps_ns = totals.sections.step_self_ns
        self._sync_before_ns += int(in_steps_ns[sync_id]) if 0 < sync_id < len(in_steps_ns) else 0
        self._sync_before_ns += totals.late_exchange_ns
        if not synced.is_on_host:
            self._hidden_from_host_ns += synced.exposed_ns
            self._sync_before_ns += synced.exposed_ns
        if step_ns:
            total_ns = sum(step_ns)
            self._add_step_times(StepTimeBucket(len(step_ns), total_ns, min(total_ns, self._sync_before_ns)))
            self._sync_before_ns = 0
        self._add_lines(totals)

    def _id_of(self, name: str) -> int:
        """Return the id of a section; 0 if there is none of that name yet."""
        names = self._names.names
        if len(self._ids) != len(names):
            self._ids = {name: id for id, name in list(names.items())}
        return self._ids.get(name, 0)

    def _add_early(self, rows: Mapping[int, Ints], synced: Sequence[tuple[int, int]]) -> None:
        for step, row in rows.items():
            if step < FIRST_STEPS:
                missing = len(row) - self._early_ns.shape[1]
                if missing > 0:
                    self._early_ns = np.pad(self._early_ns, ((0, 0), (0, missing)))
                self._early_ns[step, : len(row)] = row
        for step, ns in synced:
            if 0 <= step < FIRST_STEPS:
                self._early_sync_ns[step] += ns

    def _add_step_times(self, bucket: StepTimeBucket) -> None:
        buckets = self._step_times
        if buckets and buckets[-1].steps + bucket.steps <= self._steps_per_bucket:
            bucket = _together(buckets.pop(), bucket)
        buckets.append(bucket)
        if len(buckets) > MOST_BUCKETS:
            self._step_times = [_together(*buckets[at : at + 2]) for at in range(0, len(buckets), 2)]
            self._steps_per_bucket = max(bucket.steps for bucket in self._step_times)

    def _add_lines(self, totals: Totals) -> None:
        for (id, location), count in totals.lines.items():
            if id == BEFORE_STEPS:
                continue
            self._samples[id] += count
            if location is not None:
                line = location.alone()
                self._of_line[id, line] += count
                hottest = self._hottest.get(id)
                if hottest is None or self._of_line[id, line] > self._of_line[id, hottest]:
                    self._hottest[id] = line

    def gradient_sync_stats(self) -> GradientSyncStats | None:
        """Return the stats of DDP's gradient sync so far; None if there was none or its time is unknown."""
        synced = self._synced
        return gradient_sync_stats(synced.exchanges, synced.sampled, synced.total_ns, synced.hidden_ns)

    def summary(self, who: RankId, run: Totals, names: Mapping[int, str], **rest: Any) -> RankSummary:
        """Return the measurements so far; ``rest`` are the remaining fields of ``RankSummary``."""
        self._number += 1
        warmup = warmup_steps(run, names, self.warmup_steps)
        spread = run.steps.spread(warmup)
        settled_steps = 0 if spread is None else spread.count
        settled_ns = 0 if spread is None else round(spread.total_ns)
        beside_ns = self._hidden_from_host_ns * settled_steps // max(1, run.steps.count)
        sections = self._sections(run, names, warmup, settled_steps, beside_ns)
        sync = sections.get(SYNCHRONIZATION, RankSection())
        synced, sizes = self._synced, run.input_sizes.points
        passes = sum(size[0] for size in sizes)
        return RankSummary(
            who=replace(who, host=printable(who.host)),
            number=self._number,
            steps=run.steps.count,
            settled_steps=settled_steps,
            settled_ns=settled_ns,
            sync_ns=min(settled_ns, (sync.device_own_ns or sync.own_step_ns) + beside_ns),
            knows_sync=_knows_sync(sections, synced),
            sections=sections,
            exchanges=synced.exchanges,
            sampled=synced.sampled,
            exchange_ns=synced.total_ns,
            exchange_hidden_ns=synced.hidden_ns,
            step_times=list(self._step_times),
            blocks=self._blocks.complete_blocks(),
            hottest_lines=self._hottest_lines(run, names, sections),
            input_elements=round(sum(n * size for n, _, size in sizes) / passes) if passes else msgspec.UNSET,
            **rest,
        )

    def _sections(
        self, run: Totals, names: Mapping[int, str], warmup: int, settled_steps: int, beside_ns: int
    ) -> dict[str, RankSection]:
        sums, early_ns, early_own_ns = run.sections, *self._warmup_ns(run, warmup)
        step_ns = np.maximum(sums.step_total_ns - early_ns, 0)
        own_ns = np.maximum(sums.step_self_ns - early_own_ns, 0)
        device_ns = _device_step_ns(run, settled_steps)
        device_own_ns = device_ns.copy()
        for id, parent in _main_parents(run).items():  # subtract sections nested on the device's clock
            if device_ns[parent]:
                device_own_ns[parent] -= device_ns[id]
        backward = self._id_of(BACKWARD_PASS)
        if backward and device_own_ns[backward]:
            device_own_ns[backward] -= beside_ns
        device_own_ns = np.maximum(device_own_ns, device_ns > 0)
        has_data = np.flatnonzero((sums.count > 0) | (sums.step_self_ns > 0)).tolist()
        sent = [id for id in has_data if names.get(id) and names[id].partition(WITHIN)[0] != PROFILER]
        sent.sort(key=lambda id: -int(sums.total_ns[id]))
        on_host, on_device = (sums.count, sums.total_ns, step_ns, own_ns), (sums.device_count, sums.device_ns)
        columns = [array.tolist() for array in (*on_host, *on_device, device_ns, device_own_ns)]
        sections = {names[id]: RankSection(*(column[id] for column in columns)) for id in sent[:MOST_SECTIONS]}
        if uncovered_ns := int(own_ns[0]):
            other = sections.get(OTHER, RankSection())
            in_steps_ns, own_step_ns = other.step_ns + uncovered_ns, other.own_step_ns + uncovered_ns
            sections[OTHER] = other._replace(step_ns=in_steps_ns, own_step_ns=own_step_ns)
        return sections

    def _warmup_ns(self, run: Totals, warmup: int) -> tuple[Ints, Ints]:
        """Return the time of each section in the warm-up steps, with and without nested sections."""
        rows = run.sections.rows
        early_ns, own_ns = np.zeros(rows, np.int64), np.zeros(rows, np.int64)
        early_ns[: run.early_ns.shape[1]] = run.early_ns[:warmup].sum(axis=0)[:rows]
        own_ns[: self._early_ns.shape[1]] = self._early_ns[:warmup].sum(axis=0)[:rows]
        backward, sync = self._id_of(BACKWARD_PASS), self._id_of(SYNCHRONIZATION)
        if self._synced.is_on_host and 0 < backward < rows and 0 < sync < rows:
            moved_ns = min(int(self._early_sync_ns[:warmup].sum()), int(own_ns[backward]))
            own_ns[backward] -= moved_ns
            own_ns[sync] += moved_ns
        return early_ns, own_ns

    def _hottest_lines(
        self, run: Totals, names: Mapping[int, str], sections: Mapping[str, RankSection]
    ) -> dict[str, str]:
        at_least_ns = MIN_LINE_SHARE * run.wall_ns
        self_ns = run.sections.self_ns
        lines = {}
        for id, line in self._hottest.items():
            name = OTHER if id == IN_STEPS else names.get(id, "")
            own_ns = int(run.sections.step_self_ns[0]) if id == IN_STEPS else int(self_ns[id]) if id > 0 else 0
            if name in sections and own_ns >= at_least_ns and self._samples[id] >= ENOUGH:
                lines[name] = printable(f"{line.file}:{line.line} {line.function}")
        return lines


def _together(*buckets: StepTimeBucket) -> StepTimeBucket:
    return StepTimeBucket(*map(sum, zip(*buckets, strict=True)))


def _device_step_ns(run: Totals, settled_steps: int) -> Ints:
    """Return each section's time on the accelerator within steps after warm-up; 0 if unknown.

    This is the number of spans within steps times their mean, as in ``Snapshot.total_of_step_s``.
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


def _knows_sync(sections: Mapping[str, RankSection], synced: GradientSyncTotals) -> bool:
    """Return whether waiting for other ranks can be separated from work.

    It cannot if DDP does not report its time, nor if only the host's time is known and the device does the work.
    """
    if synced.exchanges:
        return synced.sampled > 0
    sync = sections.get(SYNCHRONIZATION)
    if sync is None or not sync.step_ns:
        return False
    return bool(sync.device_step_ns) or not sections.get(BACKWARD_PASS, RankSection()).device_step_ns
