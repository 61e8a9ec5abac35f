"""What one rank has measured so far, small enough to be told to others every few seconds."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final, NamedTuple

from training_profiler.rank_figures import RankId

SCHEMA: Final = 1
BLOCK_STEPS: Final = 16  # steps in a row whose synchronization is told one by one
MOST_BLOCKS: Final = 8
MOST_PACES: Final = 32


class RankSection(NamedTuple):
    """One section on one rank: sums in ns, on the training thread."""

    spans: int = 0
    total_ns: int = 0
    step_ns: int = 0  # within steps after warm-up, nested sections included
    own_step_ns: int = 0  # the same without nested sections
    device_count: int = 0
    device_ns: int = 0
    device_step_ns: int = 0  # as step_ns, by the accelerator's clock; 0 where that is not known


class Pace(NamedTuple):
    """Some steps in a row."""

    steps: int
    step_ns: int
    sync_ns: int


class Meeting(NamedTuple):
    """A moment that all ranks of the world know: nobody leaves it before all have come. Wall clock of the rank."""

    key: str  # the same on every rank
    enter_ns: int
    leave_ns: int


@dataclass(frozen=True, slots=True)
class RankSums:
    """What one rank has measured since its run began. Sums only grow, so that what is lost in between does no harm."""

    who: RankId
    number: int = 0  # how often it has told before
    begin_ns: int = 0  # by its wall clock: when its run began,
    told_ns: int = 0  # and up to when this reaches
    steps: int = 0
    settled_steps: int = 0  # after warm-up
    settled_ns: int = 0  # their time
    sync_ns: int = 0  # of that, in ``synchronization`` and in DDP's exchange as far as it was not hidden
    sections: Mapping[str, RankSection] = field(default_factory=dict)
    exchanges: int = 0  # of gradients, by DDP
    exchange_ns: int = 0
    exchange_hidden_ns: int = 0  # while gradients were still computed
    paces: Sequence[Pace] = ()  # all steps, the earliest first
    blocks: Mapping[int, Sequence[int]] = field(default_factory=dict)  # first step -> synchronization of 16 steps, ns
    places: Mapping[str, str] = field(default_factory=dict)  # section -> file:line function with most of its time
    meetings: Sequence[Meeting] = ()
    inside: Sequence[str] = ()
    is_final: bool = False
    ended_by: str | None = None

    def to_data(self) -> dict[str, Any]:
        """Return it as data that JSON holds exactly."""
        return {"schema": SCHEMA, **asdict(self), "sections": {name: list(row) for name, row in self.sections.items()}}


def rank_sums_from_data(data: Mapping[str, Any]) -> RankSums:
    """Return what ``to_data`` was called on.

    Raises:
        ValueError, KeyError, TypeError: the data is not of that form, or of another version.
    """
    if data["schema"] != SCHEMA:
        raise ValueError(f"it is of schema {data['schema']!r}, this version reads {SCHEMA}")
    rest = {key: value for key, value in data.items() if key != "schema"}
    rest["who"] = RankId(**data["who"])
    rest["sections"] = {name: RankSection(*row) for name, row in data["sections"].items()}
    rest["paces"] = [Pace(*pace) for pace in data["paces"]]
    rest["meetings"] = [Meeting(*meeting) for meeting in data["meetings"]]
    rest["blocks"] = {int(first): list(ns) for first, ns in data["blocks"].items()}
    return RankSums(**rest)
