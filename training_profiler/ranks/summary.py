"""What one rank has measured so far, small enough to be told to others every few seconds."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Final, NamedTuple

from training_profiler.recording.gradient_sync import BLOCK_STEPS
from training_profiler.recording.section_names import printable
from training_profiler.snapshot.ranks import RankId

SCHEMA: Final = 1
MOST_PACES: Final = 32
UNKNOWN_NS: Final = -1  # in a block: of this step it is not known


class RankSection(NamedTuple):
    """One section on one rank: sums in ns, on the training thread."""

    spans: int = 0
    total_ns: int = 0
    step_ns: int = 0  # within steps after warm-up, nested sections included
    own_step_ns: int = 0  # the same without nested sections
    device_count: int = 0
    device_ns: int = 0
    device_step_ns: int = 0  # as step_ns, by the accelerator's clock; 0 where that is not known
    device_own_ns: int = 0  # as own_step_ns


class StepTimeBucket(NamedTuple):
    """Some steps in a row."""

    steps: int
    step_ns: int
    sync_ns: int


class SyncPoint(NamedTuple):
    """A moment that all ranks of the world know: nobody leaves it before all have come. Wall clock of the rank."""

    key: str  # the same on every rank
    enter_ns: int
    leave_ns: int


@dataclass(frozen=True, slots=True)
class RankSummary:
    """What one rank has measured since its run began. Sums only grow, so that what is lost in between does no harm."""

    who: RankId
    number: int = 0  # how often it has told before
    begin_ns: int = 0  # by its wall clock: when its run began,
    told_ns: int = 0  # and up to when this reaches
    steps: int = 0
    settled_steps: int = 0  # after warm-up
    settled_ns: int = 0  # their time
    sync_ns: int = 0  # of that, in ``synchronization`` and in DDP's exchange as far as it was not hidden
    knows_sync: bool = False  # some exchange between ranks was seen, and none that is known to have no time
    sections: Mapping[str, RankSection] = field(default_factory=dict)
    exchanges: int = 0  # of gradients, by DDP
    sampled: int = 0  # of how many DDP took the times
    exchange_ns: int = 0
    exchange_hidden_ns: int = 0  # while gradients were still computed
    paces: Sequence[StepTimeBucket] = ()  # all steps, the earliest first
    blocks: Mapping[int, Sequence[int]] = field(default_factory=dict)  # first step -> synchronization of 16 steps, ns
    places: Mapping[str, str] = field(default_factory=dict)  # section -> file:line function with most of its time
    meetings: Sequence[SyncPoint] = ()
    inside: Sequence[str] = ()
    is_final: bool = False
    ended_by: str | None = None

    def to_data(self) -> dict[str, Any]:
        """Return it as data that JSON holds exactly."""
        return {
            "schema": SCHEMA,
            **{name: getattr(self, name) for name in _NAMES},
            "who": asdict(self.who),
            "sections": {name: list(row) for name, row in self.sections.items()},
            "blocks": {str(first): list(ns) for first, ns in self.blocks.items()},
        }


_MOST: Final = 2**62
_NAMES: Final = tuple(one.name for one in fields(RankSummary))
_COUNTS: Final = (
    "number", "begin_ns", "told_ns", "steps", "settled_steps", "settled_ns", "sync_ns", "exchanges", "sampled",
    "exchange_ns", "exchange_hidden_ns",
)  # fmt: skip


def rank_summary_from_data(data: Mapping[str, Any]) -> RankSummary:
    """Return what ``to_data`` was called on; keys that this version does not know are passed over.

    Raises:
        ValueError, KeyError, TypeError, AttributeError, OverflowError: the data is not of that form, or of another
            version.
    """
    if data["schema"] != SCHEMA:
        raise ValueError(f"it is of schema {data['schema']!r}, this version reads {SCHEMA}")
    ended_by = data.get("ended_by")
    return RankSummary(
        who=_who(data["who"]),
        **{name: _count(data.get(name, 0)) for name in _COUNTS},
        knows_sync=bool(data.get("knows_sync")),
        sections={
            _clean(name): RankSection(*map(_count, row[: len(RankSection._fields)]))
            for name, row in data["sections"].items()
        },
        paces=[StepTimeBucket(*map(_count, pace)) for pace in data["paces"]],
        blocks={int(first): _block(ns) for first, ns in data["blocks"].items()},
        places={_clean(name): _clean(place) for name, place in data["places"].items()},
        meetings=[SyncPoint(_clean(key), _count(enter), _count(leave)) for key, enter, leave in data["meetings"]],
        inside=[_clean(name) for name in data["inside"]],
        is_final=bool(data["is_final"]),
        ended_by=None if ended_by is None else _clean(ended_by),
    )


def _who(data: Mapping[str, Any]) -> RankId:
    node, local_rank = data.get("node"), data.get("local_rank")
    return RankId(
        rank=_count(data["rank"]),
        world_size=_count(data["world_size"]),
        host=_clean(data.get("host", "")),
        node=None if node is None else int(node),
        local_rank=None if local_rank is None else int(local_rank),
        attempt=int(data.get("attempt", 0)),
    )


def _count(value: object) -> int:
    """Return a number that sums over ranks have room for."""
    if not isinstance(value, int) or not 0 <= value <= _MOST:
        raise ValueError(f"{value!r} is no number of spans, steps or ns")
    return int(value)


def _block(ns: Sequence[object]) -> list[int]:
    if len(ns) != BLOCK_STEPS:
        raise ValueError(f"a block has {BLOCK_STEPS} steps, and not {len(ns)}")
    return [UNKNOWN_NS if one == UNKNOWN_NS else _count(one) for one in ns]


def _clean(text: object) -> str:
    """Return a name fit for any table; what another process says is data."""
    if not isinstance(text, str):
        raise TypeError(f"{text!r} is no name")
    return text if len(text) <= 120 and text.isprintable() else printable(text)
