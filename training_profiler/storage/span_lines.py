"""The journal's record of single steps with their spans, and conversion to it and back."""

from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

from training_profiler.aggregation.step_spans import RecordedStep, Why
from training_profiler.base.units import NS_PER_US
from training_profiler.snapshot.series import Lane, Span, StepLanes
from training_profiler.storage.limits import Count, Moment

Offset = Annotated[int, Meta(ge=-(2**43), le=2**43)]  # 2^53 ns


class LaneRow(Struct, array_like=True):
    """The spans of a thread in columns."""

    thread: str
    names: list[Count]  # places in the names of the line
    begin_us: list[Offset]  # since the begin of the step
    end_us: list[Offset]


class StepRow(Struct, array_like=True):
    """A step; see ``RecordedStep``."""

    number: Count
    why: Why
    begin_ns: Moment
    end_ns: Moment
    duration_ns: Count
    left_out: Count
    lanes: list[LaneRow]


class SpansLine(Struct, tag_field="kind", tag="spans"):
    """Steps with their spans. Journals of earlier versions have none, and earlier versions ignore them."""

    names: list[str]  # of the sections
    steps: list[StepRow]

    def step_lanes(self, name: Callable[[str], str], thread: Callable[[str], str]) -> list[StepLanes]:
        """Return the steps, with the texts that two functions make of names of sections and of threads."""
        names = [name(given) for given in self.names]
        return [
            StepLanes(
                row.number,
                row.why,
                row.begin_ns,
                row.end_ns,
                row.duration_ns,
                row.left_out,
                tuple(Lane(thread(lane.thread), _spans(row, lane, names)) for lane in row.lanes),
            )
            for row in self.steps
        ]


def _spans(row: StepRow, lane: LaneRow, names: Sequence[str]) -> tuple[Span, ...]:
    columns = zip(lane.names, lane.begin_us, lane.end_us, strict=True)
    return tuple(
        Span(names[name], row.begin_ns + begin * NS_PER_US, row.begin_ns + end * NS_PER_US)
        for name, begin, end in columns
    )


def spans_to_data(steps: Sequence[RecordedStep], names: Mapping[int, str]) -> dict[str, Any]:
    """Return the steps as data that JSON represents exactly."""
    used = sorted({id for step in steps for lane in step.threads.values() for id in lane.ids.tolist()})
    place = {id: at for at, id in enumerate(used)}
    line = SpansLine([names[id] for id in used], [_step_row(step, place) for step in steps])
    data: dict[str, Any] = msgspec.to_builtins(line)
    del data["kind"]
    return data


def _step_row(step: RecordedStep, place: Mapping[int, int]) -> StepRow:
    number, begin_ns, end_ns, duration_ns = step.bounds
    lanes = []
    for thread, spans in step.threads.items():
        # Both ends are rounded in the same way, so what is nested stays nested.
        begins_us, ends_us = ((times - begin_ns) // NS_PER_US for times in (spans.begin_ns, spans.end_ns))
        lanes.append(LaneRow(thread, [place[id] for id in spans.ids.tolist()], begins_us.tolist(), ends_us.tolist()))
    return StepRow(number, step.why, begin_ns, end_ns, duration_ns, step.left_out, lanes)


def check_spans(line: SpansLine) -> None:
    """Check what the types alone do not.

    Raises:
        ValueError: columns do not belong together.
    """
    for row in line.steps:
        if row.end_ns < row.begin_ns:
            raise ValueError("a step ends before its begin")
        for lane in row.lanes:
            if not len(lane.names) == len(lane.begin_us) == len(lane.end_us):
                raise ValueError("the columns of spans have different lengths")
            if any(name >= len(line.names) for name in lane.names):
                raise ValueError("a span is of a section without a name")
            if any(end < begin for begin, end in zip(lane.begin_us, lane.end_us, strict=True)):
                raise ValueError("a span ends before its begin")
