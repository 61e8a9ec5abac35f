"""The sums of workers as JSON, in a worker's file and in the journal; what is read is checked."""

from typing import Annotated, Final

import msgspec
from msgspec import Meta, Struct

from training_profiler.base.text import printable
from training_profiler.recording.worker_sums import PHASES, WorkerLine, WorkerMemory, WorkerSums

Count = Annotated[int, Meta(ge=0, le=2**53)]


class _Line(Struct, array_like=True):
    phase: str
    file: str
    line: Count
    function: str
    inside: str
    samples: Count


class WorkerRecord(Struct, array_like=True):
    """``WorkerSums`` with bounds; its fields in their order."""

    workers: Count
    batches: Count
    wall_ns: Count
    fetch_ns: Count
    slowest_ns: Count
    cpu_ns: Count
    queued_ns: Count
    sampling_ns: Count
    idle_samples: Count
    waits: Count
    held: Count
    lines: Annotated[list[_Line], Meta(max_length=500)]
    memory: Annotated[list[tuple[Count, Count, Count]], Meta(max_length=500)]
    pin_waits: Count = 0
    pinning: Count = 0


_DECODER: Final = msgspec.json.Decoder(WorkerRecord)


def encode(sums: WorkerSums) -> bytes:
    """Return the sums as JSON."""
    return msgspec.json.encode(sums)


def decode(data: bytes) -> WorkerSums:
    """Return sums from JSON of another process.

    Raises:
        ValueError: it is something else.
    """
    return sums_of(_DECODER.decode(data))


def sums_of(record: WorkerRecord) -> WorkerSums:
    """Return the sums, their texts fit for a report."""
    lines = tuple(
        WorkerLine(
            line.phase if line.phase in PHASES else PHASES[0],
            printable(line.file),
            line.line,
            printable(line.function),
            printable(line.inside),
            line.samples,
        )
        for line in record.lines
    )
    memory = tuple(WorkerMemory(*each) for each in record.memory)
    fields = {**msgspec.structs.asdict(record), "lines": lines, "memory": memory}
    return WorkerSums(**fields)
