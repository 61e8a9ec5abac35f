"""The lines of a journal: the one place where what stands in one becomes data. Each is checked before it counts."""

import re
from collections.abc import Sequence
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta, Struct

from training_profiler.base.text import one_line, printable
from training_profiler.loader_workers.record import WorkerRecord, sums_of
from training_profiler.recording.data_loader import TRAIN, LoaderArguments, LoaderCounts, MadeBatches
from training_profiler.snapshot.program import ProgramFacts
from training_profiler.snapshot.snapshot import DeviceTimingStats
from training_profiler.storage.facts_codec import checked_facts, fit
from training_profiler.storage.journal_codec import IntervalRecord, check_interval
from training_profiler.storage.limits import MOST_LOADERS, MOST_NOTES, Count, Moment, Real
from training_profiler.storage.span_lines import SpansLine, check_spans

Share = Annotated[float, Meta(ge=0, le=1e9)]
_SURROGATES: Final = re.compile(
    rb"\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|\\u[dD][89a-fA-F][0-9a-fA-F]{2}"
)


class BadLineError(ValueError):
    """A whole line that is not a journal's."""


class Phase(Struct, array_like=True):
    """The batches of a loader in training or validation."""

    phase: Literal["train", "val"]
    batches: Count
    samples: Count | None
    wait_ns: Count
    made: tuple[Count, Count] = (0, 0)  # batches that the training made itself, and their CPU time in ns
    cut_passes: Count = 0  # left after their first batch


class LoaderRow(Struct, array_like=True):
    """The batches of a loader so far. Journals of earlier versions have the first four columns."""

    name: str
    batches: Count
    samples: Count | None
    wait_ns: Count
    loader_id: Count = 0
    requested_share: Share | None = None
    phases: list[Phase] = []
    arguments: LoaderArguments | None = None
    workers: WorkerRecord | None = None

    def counts(self) -> LoaderCounts:
        """Return the row as the counts that it was made from."""
        counts = LoaderCounts(printable(self.name), self.loader_id)
        counts.requested_share = self.requested_share
        if self.arguments is not None:
            counts.use_arguments(fit(self.arguments))
        if self.workers is not None:
            counts.use_workers(sums_of(self.workers))
        for phase in self.phases or [Phase(TRAIN, self.batches, self.samples, self.wait_ns)]:
            counts.by_phase[phase.phase].add(
                phase.batches, phase.samples, phase.wait_ns, MadeBatches(*phase.made), phase.cut_passes
            )
        return counts


class IntervalLine(IntervalRecord, kw_only=True, tag_field="kind", tag="interval"):
    """A flush interval; loaders, device and health cover the run so far."""

    loaders: list[LoaderRow]
    open_sections: list[str]
    device: DeviceTimingStats | None = None
    program: ProgramFacts | None = None
    disabled: tuple[str, ...] = ()
    overhead_s: Real = 0.0
    span_s: Real = 0.0
    notes: tuple[str, ...] = ()

    def loader_counts(self) -> list[LoaderCounts]:
        """Return the counts of the loaders."""
        return [row.counts() for row in self.loaders[:MOST_LOADERS]]

    def device_timing(self) -> DeviceTimingStats | None:
        """Return how device time was measured; None without an accelerator."""
        return fit(self.device, MOST_NOTES)

    def program_facts(self) -> ProgramFacts | None:
        """Return what the program had set; its texts fit for a report."""
        return None if self.program is None else checked_facts(self.program)


class PendingLine(IntervalLine, kw_only=True, tag_field="kind", tag="pending"):
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


class _Kind(Struct):
    kind: str


_KINDS: Final = msgspec.json.Decoder(_Kind)
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
        if isinstance(record, IntervalLine):
            check_interval(record)
        elif isinstance(record, SpansLine):
            check_spans(record)
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
    try:
        return _KINDS.decode(line).kind
    except (ValueError, RecursionError):
        return _KNOWN[0]


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
