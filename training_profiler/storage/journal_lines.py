"""The lines of a journal: the one place where what stands in one becomes data. Each is checked before it counts."""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Final, Self

import msgspec
from msgspec import Meta, Struct, structs

from training_profiler.base.text import one_line, printable
from training_profiler.model.bounds import MOST_NOTES, MOST_SUM, Count, Moment, Real, fit
from training_profiler.model.interval import IntervalRecord
from training_profiler.model.loader_workers import TRAIN, VAL, PhaseCounts, WorkerSums, fit_sums
from training_profiler.model.program import CallFacts, ProgramFacts, UnusedGradients, UnusedGraphs
from training_profiler.model.series import Lane, StepLanes
from training_profiler.model.snapshot import DeviceTimingStats
from training_profiler.recording.data_loader import LoaderArguments, LoaderCounts


class SpansLine(Struct, tag_field="kind", tag="spans"):
    """Steps with their spans. Journals of earlier versions have none, and earlier versions ignore them."""

    names: list[str]  # of the sections
    steps: list[StepLanes[Count]]

    def check(self) -> None:
        """Check what the types alone do not.

        Raises:
            ValueError: columns do not belong together.
        """
        for row in self.steps:
            if row.end_ns < row.begin_ns:
                raise ValueError("a step ends before its begin")
            for lane in row.lanes:
                if not len(lane.sections) == len(lane.begin_us) == len(lane.end_us):
                    raise ValueError("the columns of spans have different lengths")
                if any(name >= len(self.names) for name in lane.sections):
                    raise ValueError("a span is of a section without a name")
                if any(end < begin for begin, end in zip(lane.begin_us, lane.end_us, strict=True)):
                    raise ValueError("a span ends before its begin")

    def step_lanes(self, name: Callable[[str], str], thread: Callable[[str], str]) -> list[StepLanes[str]]:
        """Return the steps, with the texts that two functions make of names of sections and of threads."""
        names = list(map(name, self.names))
        return [_named(step, names, thread) for step in self.steps]


def spans_line(steps: Sequence[StepLanes[int]], names: Mapping[int, str]) -> SpansLine:
    """Return single steps with their spans, of sections by their ids."""
    used = sorted({id for step in steps for lane in step.lanes for id in lane.sections})
    place = {id: at for at, id in enumerate(used)}
    return SpansLine([names[id] for id in used], [_named(step, place) for step in steps])


def _named(step: StepLanes[int], names: Any, thread: Callable[[str], str] = str) -> StepLanes[Any]:
    lanes = [
        Lane(thread(lane.thread), [names[at] for at in lane.sections], lane.begin_us, lane.end_us)
        for lane in step.lanes
    ]
    return structs.replace(step, lanes=lanes)


JOURNAL_SCHEMA: Final = 1
Share = Annotated[float, Meta(ge=0, le=1e9)]
MOST_CALLS: Final = 32  # in the facts of a program; and arguments, data types, devices
# Fields of facts that are 0 to 1.
_PARTS: Final = frozenset(
    ("used", "part", "part_of_backward", "passed_on", "loop", "padding", "worst", "to_longest", "grouped")
)
_SURROGATES: Final = re.compile(
    rb"\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|\\u[dD][89a-fA-F][0-9a-fA-F]{2}"
)


class BadLineError(ValueError):
    """A whole line that is not a journal's."""


class LoaderRow(Struct, array_like=True):
    """The batches of a loader so far. Journals of earlier versions have the first four columns."""

    name: str
    batches: Count
    samples: Count | None
    wait_ns: Count
    loader_id: Count = 0
    requested_share: Share | None = None
    phases: list[PhaseCounts] = []
    arguments: LoaderArguments | None = None
    workers: WorkerSums | None = None
    other_names: list[str] = []

    @classmethod
    def of(cls, counts: LoaderCounts) -> Self:
        """Return the batches of a loader so far."""
        rows = [counts.of(phase) for phase in (TRAIN, VAL)]
        sums = (counts.name, counts.batches, counts.samples, counts.wait_ns)
        names, arguments, workers = list(counts.other_names), counts.arguments, counts.workers
        return cls(*sums, counts.loader_id, counts.requested_share, rows, arguments, workers, names)

    def counts(self) -> LoaderCounts:
        """Return the row as the counts that it was made from."""
        counts = LoaderCounts(printable(self.name), self.loader_id)
        counts.requested_share = self.requested_share
        counts.other_names = [printable(name) for name in self.other_names]
        if self.arguments is not None:
            counts.use_arguments(fit(self.arguments))
        if self.workers is not None:
            counts.use_workers(fit_sums(self.workers))
        rows = self.phases or [PhaseCounts(TRAIN, self.batches, self.samples, self.wait_ns)]
        counts.by_phase.update({row.phase: row for row in rows})
        return counts


class IntervalLine(IntervalRecord, omit_defaults=True, kw_only=True, tag_field="kind", tag="interval"):
    """A flush interval; loaders, device and health cover the run so far. Version 0.2.0 needs what has no default."""

    end_ns: Moment
    first_fetch_ns: Count | None
    dropped: Count
    unended: Count
    loaders: list[LoaderRow]
    open_sections: list[str]
    device: DeviceTimingStats | None = None
    program: ProgramFacts | None = None
    disabled: tuple[str, ...] = ()
    overhead_s: Real = 0.0
    span_s: Real = 0.0
    notes: tuple[str, ...] = ()


class PendingLine(IntervalLine, omit_defaults=True, kw_only=True, tag_field="kind", tag="pending"):
    """An interval that has not ended: the next line of a stretch covers it again, so only the last one counts."""


class LostLine(Struct, tag_field="kind", tag="lost"):
    """Intervals that were never written."""

    intervals: Count


class SourcesLine(Struct, tag_field="kind", tag="sources"):
    """The digests of source files by their names in reports; further lines have further files."""

    files: dict[str, str]


class EpochBeginLine(Struct, tag_field="kind", tag="epoch_begin"):
    """The begin of an epoch, at the end of the last interval."""

    number: Count


class EpochEndLine(Struct, tag_field="kind", tag="epoch_end"):
    """The end of an epoch, at the end of the last interval."""

    batches: Count | None
    samples: Count | None
    is_complete: bool


class HeldLine(Struct, tag_field="kind", tag="held"):
    """Intervals that were dropped before the journal had a file."""

    dropped: Count


class EndLine(Struct, tag_field="kind", tag="end"):
    """The end of the run."""

    ended_by: str | None
    error: str = ""
    disabled: tuple[str, ...] = ()
    overhead_s: Real = 0.0
    span_s: Real = 0.0
    notes: tuple[str, ...] = ()


class BeginLine(Struct, tag_field="kind", tag="begin"):
    """The first line, as far as the figures need it."""

    begin_ns: Moment
    warmup: Count | None


Line = (
    IntervalLine
    | PendingLine
    | LostLine
    | SourcesLine
    | EpochBeginLine
    | EpochEndLine
    | HeldLine
    | SpansLine
    | EndLine
    | BeginLine
)
_LINES: Final = msgspec.json.Decoder(Line)


_KNOWN: Final = ("interval", "pending", "lost", "sources", "epoch_begin", "epoch_end", "held", "spans", "end", "begin")
_OBJECTS: Final = msgspec.json.Decoder(dict[str, Any])


def decode_line(line: bytes) -> Line | None:
    """Return a line of a journal; None for a kind that the stats of a run do not need.

    Raises:
        BadLineError: it is JSON, and not a journal's.
        ValueError: it is not JSON, or not whole.
    """
    line = _decodable(line)
    try:
        record: Line = _LINES.decode(line)
        if isinstance(record, (IntervalLine, SpansLine)):
            record.check()
    except (msgspec.ValidationError, RecursionError) as error:
        if isinstance(error, RecursionError) or _kind(line) in _KNOWN:
            raise BadLineError(one_line(error)) from None
        return None
    except msgspec.DecodeError:
        raise
    except ValueError as error:
        raise BadLineError(one_line(error)) from None
    return record


def _kind(line: bytes) -> str:
    kind = (as_object(line) or {}).get("kind")
    return kind if isinstance(kind, str) else _KNOWN[0]


def as_object(line: bytes) -> dict[str, Any] | None:
    """Return any JSON object; None for anything else. Too deep is anything else."""
    try:
        return _OBJECTS.decode(_decodable(line))
    except (ValueError, RecursionError):
        return None


def _decodable(line: bytes) -> bytes:
    """Return a line with what no text can contain replaced by U+FFFD: broken UTF-8, and halves of surrogate pairs."""
    if b"\\ud" in line or b"\\uD" in line:
        line = _SURROGATES.sub(lambda match: match[0] if len(match[0]) > 6 else b"\\ufffd", line)
    try:
        line.decode()
    except UnicodeDecodeError:
        return line.decode("utf-8", "replace").encode()
    return line


def sentences(texts: Sequence[str]) -> tuple[str, ...]:
    """Return notes of a journal fit for a report, and not more than it can hold."""
    kept = tuple(map(one_line, texts[:MOST_NOTES]))
    more = len(texts) - MOST_NOTES
    return (*kept, f"and {more} more") if more > 0 else kept


def checked_facts(facts: ProgramFacts) -> ProgramFacts:
    """Return the program's facts, read from a journal."""
    parts = {name: _parts(value) for name, value in fit(facts, MOST_CALLS)._asdict().items()}
    return ProgramFacts(**{**parts, "calls": tuple(map(_call, facts.calls[:MOST_CALLS]))})


def _call(call: CallFacts) -> CallFacts:
    column = max(-1, min(MOST_SUM, call.site.column))  # -1 is unknown
    fitted = fit(call, MOST_CALLS)
    return fitted._replace(site=fitted.site._replace(column=column))


def _parts(facts: Any) -> Any:
    """Return facts whose parts are no more than the whole."""
    names = _PARTS.intersection(getattr(facts, "_fields", ()))
    facts = facts._replace(**{name: min(1.0, getattr(facts, name)) for name in names}) if names else facts
    if isinstance(facts, UnusedGradients):
        return facts._replace(numbers=min(facts.numbers, facts.of), passed_on=min(facts.part, facts.passed_on))
    if isinstance(facts, UnusedGraphs):
        of = max(1, facts.of)
        return facts._replace(steps=max(1, facts.steps), calls=min(max(1, facts.calls), of), of=of)
    return facts
