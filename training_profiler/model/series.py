"""What a journal has over time, a part of neither reports nor rules: each rank's stretches, steps and lines."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Final, Generic, Literal, TypeVar

from msgspec import Meta, Struct

from training_profiler.model.bounds import Count, Moment
from training_profiler.model.location import Location

Why = Literal["first", "slow", "last"]  # a step was recorded
SLOW: Final[Why] = "slow"
Name = TypeVar("Name")
Offset = Annotated[int, Meta(ge=-(2**43), le=2**43)]  # 2^53 ns
DEVICE_LANE: Final = "device "  # begin of the names of lanes of devices


@dataclass(frozen=True, slots=True)
class Stretch:
    """The time between two lines of the journal. Moments are on the rank's clock, in ns."""

    begin_ns: int
    end_ns: int
    first_step: int  # steps complete before it
    steps_ns: Sequence[int]  # durations of the steps that ended in it
    slowed: tuple[int, ...]  # indices among them of steps that a capture slowed
    steps_a_block: int
    blocks_ns: Mapping[str, tuple[int, ...]]  # exclusive time of each section in each block of steps
    outside_ns: int  # time that is in no step: validation, checkpoints, the profiler
    levels: Mapping[str, float]  # means of the machine's quantities
    loop_begin_ns: int | None = None  # begin of the run's first step, if it became known here
    epoch_begin_ns: int | None = None  # begin of the epoch that this stretch is the first of
    samples: int | None = None  # fetched for its steps
    lost: float | None = None  # part of the time that the training waited for CPUs that others had; None if unknown


@dataclass(frozen=True, slots=True)
class EpochSpan:
    """An epoch on the rank's clock; ``end_ns`` is None where its end was not recorded."""

    number: int
    begin_ns: int
    end_ns: int | None


class Lane(Struct, Generic[Name], array_like=True, frozen=True):
    """The spans of a thread in a step in columns, in no particular order: they may begin before it and end after it."""

    thread: str
    sections: Sequence[Name]  # in a journal, places in the names of the line
    begin_us: Sequence[Offset]  # since the begin of the step
    end_us: Sequence[Offset]

    def by_begin(self) -> list[tuple[Name, int, int]]:
        """Return the spans with begin and end in us, by their begins and the outermost first."""
        spans = zip(self.sections, self.begin_us, self.end_us, strict=True)
        return sorted(spans, key=lambda span: (span[1], -span[2]))


class StepLanes(Struct, Generic[Name], array_like=True, frozen=True):
    """A step that was recorded with its spans. Moments are on the rank's clock, in ns."""

    number: Count  # counted from 1
    why: Why
    begin_ns: Moment
    end_ns: Moment
    duration_ns: Count  # without time outside steps that lies between
    left_out: Count  # spans, the shortest
    lanes: Sequence[Lane[Name]]  # the training thread's first


@dataclass(frozen=True, slots=True)
class RankSeries:
    """One rank over time."""

    rank: int
    host: str
    wall_ns: int  # begin of the run on the machine's wall clock; 0 if unknown
    begin_ns: int
    stretches: tuple[Stretch, ...]
    epochs: tuple[EpochSpan, ...]
    parents: Mapping[str, str]  # section -> the section around most of its spans
    lines_ns: Mapping[str, Mapping[Location | None, float]]  # section -> line -> its part of the section's own time
    recorded: tuple[StepLanes[str], ...] = ()  # steps with their spans, by number
    # section -> the part after the training of what ``lines_ns`` has of it, 0 to 1
    after_parts: Mapping[str, float] = field(default_factory=dict)
    sources: Mapping[str, str] = field(default_factory=dict)  # digests of source files by their names in reports
    warmup: int = 0  # first steps that a comparison leaves out at least

    @property
    def steps(self) -> int:
        """Number of complete steps."""
        return sum(len(stretch.steps_ns) for stretch in self.stretches)
