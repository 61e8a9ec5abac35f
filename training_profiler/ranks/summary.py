"""The summary a rank sends to the other ranks: small enough for one message every few seconds."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final, NamedTuple

import msgspec

from training_profiler.base.text import printable
from training_profiler.base.units import NS_PER_S
from training_profiler.recording.gradient_sync import BLOCK_STEPS
from training_profiler.snapshot.ranks import GradientSyncStats, RankId

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
    step_times: Annotated[Sequence[StepTimeBucket], _Few] = msgspec.field(
        default=(), name="paces"
    )  # all steps, in order
    blocks: Annotated[Mapping[Count, Block], _Few] = {}  # first step -> synchronization of 16 steps, ns
    hottest_lines: Annotated[Mapping[str, str], _Few] = msgspec.field(
        default={}, name="places"
    )  # section -> "file:line function"
    sync_points: Annotated[Sequence[RankSyncPoint], _Few] = msgspec.field(default=(), name="meetings")
    inside: Annotated[Sequence[str], _Few] = ()  # open sections, outermost first
    is_final: bool = False
    ended_by: str | None = None

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
    return _printable(msgspec.convert(known, RankSummary, str_keys=True))


def _printable(summary: RankSummary) -> RankSummary:
    """Return the summary with all text fit for a terminal: another process may send anything."""
    who = summary.who
    return msgspec.structs.replace(
        summary,
        who=RankId(who.rank, who.world_size, printable(who.host), who.node, who.local_rank, who.attempt),
        sections={printable(name): section for name, section in summary.sections.items()},
        hottest_lines={printable(name): printable(line) for name, line in summary.hottest_lines.items()},
        sync_points=[point._replace(key=printable(point.key)) for point in summary.sync_points],
        inside=[printable(name) for name in summary.inside],
        ended_by=None if summary.ended_by is None else printable(summary.ended_by),
    )
