"""Turns decoded events into columns. Of each event only the fields of its category are read."""

from collections.abc import Callable, Iterable, Sequence, Set
from dataclasses import dataclass
from itertools import compress
from operator import attrgetter
from typing import Any, Final

import msgspec
import numpy as np

from training_profiler.errors import TraceError
from training_profiler.findings.tables import counted
from training_profiler.recording.known_sections import SAMPLED_LINE
from training_profiler.text import printable
from training_profiler.trace_analysis.load.begin_end import pairs_of
from training_profiler.trace_analysis.load.columns import (
    CATEGORIES,
    CATEGORY_IDS,
    GPU_CATEGORIES,
    NONE,
    Bools,
    Columns,
    Floats,
    Ints,
    Memory,
    Messages,
    Recorded,
    Samples,
)
from training_profiler.trace_analysis.load.reader import Args, Event, RawTrace
from training_profiler.trace_analysis.load.times import TimeProblemError, times_ns

_NO_ARGS: Final = Args()
MOST_NAME: Final = 2_000  # characters; kernels of templates have long names
_EMPTY_STRING: Final = 2  # bytes of its JSON
MOST_STACK: Final = 20_000
NO_NAME: Final = "(no name)"
MTIA_WORK: Final = "mtia_ccp_events"
_MTIA_COPY: Final = "dma_request"
_MTIA_EVENTS: Final = ("event_wait", "event_record")  # occupy a stream, compute nothing
MOST_THREADS: Final = 1_000
MOST_DEVICES: Final = 256
MOST_ELEMENTS: Final = 2**58  # of a message; more would not fit into 64 bits of bytes
MOST_SUM_NS: Final = 2**62
_BEYOND_64_BITS: Final = 2**63
# Old versions give these the category of operators.
_ANNOTATIONS: Final = ("ProfilerStep#", "Optimizer.", "enumerate(DataLoader)", "## ")
_BYTES_OF: Final = {
    "double": 8,
    "long": 8,
    "int64": 8,
    "float64": 8,
    "bfloat16": 2,
    "float16": 2,
    "float8": 1,
    "half": 2,
    "short": 2,
    "float": 4,
    "int8": 1,
    "int": 4,
    "byte": 1,
    "char": 1,
    "bool": 1,
}


def columns_of(raw: RawTrace, where: str) -> Columns:
    """Return the columns of a trace; ``where`` is its file, for messages.

    Raises:
        TraceError: a time is missing, no number or negative, or no event has a duration.
    """
    kinds = set(map(attrgetter("ph"), raw.events))
    events, begin_ns, end_ns, lost_halves = _with_duration(raw, kinds, where)
    order = np.argsort(begin_ns, kind="stable")
    names, name, nameless = _names(events)
    threads, thread = _threads(events, where)
    category, args = _of_mtia(events, _categories(events, names, name))
    is_gpu = np.isin(category, [CATEGORY_IDS[category_name] for category_name in GPU_CATEGORIES])
    is_kernel = category == CATEGORY_IDS["kernel"]
    is_call = category == CATEGORY_IDS["cuda_runtime"]
    is_operator = category == CATEGORY_IDS["cpu_op"]
    reader = _Reader(args, order)
    device = reader.integers(is_gpu, "device")
    _check_number(len(np.unique(device)), "devices", MOST_DEVICES, where)
    instants = [event for event in raw.events if event.ph == "i"] if "i" in kinds else []
    collectives = reader.texts(is_kernel, "collective")
    shapes = reader.written(is_operator, "dims", _text)
    inputs, input_texts = _inputs(shapes, reader, is_operator)
    return Columns(
        names=tuple(names),
        threads=tuple(threads),
        name=name[order],
        category=category[order],
        thread=thread[order],
        begin_ns=begin_ns[order],
        end_ns=end_ns[order],
        device=device,
        stream=reader.integers(is_gpu, "stream"),
        correlation=reader.integers(is_gpu | is_call, "correlation"),
        external=reader.integers(is_gpu | is_call | is_operator, "external_id", "external_id_old"),
        bytes=reader.integers(is_gpu & ~is_kernel, "bytes", "memory_bytes"),
        launches=reader.among(names, is_call, "kernel"),
        messages=_messages(reader, is_kernel),
        collective=collectives.index,
        collectives=collectives.texts,
        shapes=shapes.index,
        shape_texts=shapes.texts,
        inputs=inputs,
        input_texts=input_texts,
        call_stacks=reader.written(is_operator | (category == CATEGORY_IDS["user_annotation"]), "stack", _string),
        script_modules=reader.written(is_operator, "module", _string),
        # Kineto writes 0 if it cannot estimate the occupancy.
        occupancy=reader.floats(is_kernel, "occupancy", unknown=0),
        blocks_per_sm=reader.floats(is_kernel, "blocks_per_sm"),
        memory=_memory([event for event in instants if event.name == "[memory]"], where),
        samples=_samples([event for event in instants if event.cat == SAMPLED_LINE], where),
        device_names=tuple(printable(str(device.get("name", ""))) for device in raw.devices),
        device_bytes=_memory_of_devices(raw.devices),
        world_size=_integer_or_none(raw.distributed.get("world_size")),
        rank=_integer_or_none(raw.distributed.get("rank")),
        compute_capability=_capability(raw.devices),
        lost_halves=lost_halves,
        notes=raw.notes + nameless,
    )


def _threads(events: Sequence[Event], where: str) -> tuple[list[tuple[Any, Any]], Ints]:
    """Return the distinct threads and streams, and the index of that of each event."""
    processes, process = numbered(list(map(attrgetter("pid"), events)))
    numbers, number = numbered(list(map(attrgetter("tid"), events)))
    pairs, thread = np.unique(process * len(numbers) + number, return_inverse=True)
    _check_number(len(pairs), "threads and streams", MOST_THREADS, where)
    threads = [(processes[pair // len(numbers)], numbers[pair % len(numbers)]) for pair in pairs.tolist()]
    return threads, thread


def _check_number(count: int, what: str, most: int, where: str) -> None:
    if count > most:
        raise TraceError(f"{where} has events of {count} {what}; at most {most} are read")


def _names(events: Sequence[Event]) -> tuple[list[str], Ints, tuple[str, ...]]:
    """Return the distinct names, the index of each event's name, and a note if events have none."""
    given, name = numbered(list(map(attrgetter("name"), events)))
    names = [NO_NAME if text is None else printable(str(text), MOST_NAME) for text in given]
    nameless = int((name == given.index(None)).sum()) if None in given else 0
    return names, name, (f"{counted(nameless, 'event')} without a name",) if nameless else ()


@dataclass(frozen=True, slots=True)
class _Reader:
    """Reads fields of the events' arguments, in the order of the columns."""

    args: Sequence[Args]
    order: Ints

    def values(self, which: Bools) -> list[Args]:
        """Return the arguments of the events of ``which``."""
        return list(compress(self.args, which.tolist()))

    def integers(self, which: Bools, field: str, older: str = "") -> Ints:
        """Return whole numbers of the events of ``which``, else of the field's older name; -1 if both are missing."""
        args = self.values(which)
        values = list(map(attrgetter(field), args))
        if older and None in values:
            values = [
                other if value is None else value
                for value, other in zip(values, map(attrgetter(older), args), strict=True)
            ]
        return self.filled(which, _integers(values))

    def floats(self, which: Bools, field: str, unknown: float | None = None) -> Floats:
        """Return numbers of the events of ``which``; NaN if missing or ``unknown``."""
        column = np.full(len(self.args), np.nan)
        values = _floats(map(attrgetter(field), self.values(which)))
        column[which] = np.where(values == unknown, np.nan, values)
        return column[self.order]

    def texts(self, which: Bools, field: str) -> Recorded:
        """Return texts of the events of ``which``; "" if missing."""
        values, index = numbered(list(map(attrgetter(field), self.values(which))))
        return Recorded(tuple(map(_text, values)), self.filled(which, index))

    def written(self, which: Bools, field: str, text_of: Callable[[bytes], str]) -> Recorded:
        """Return the text of what the file has for a field; "" if it is missing."""
        raws = list(map(attrgetter(field), self.values(which)))
        if max(map(len, raws), default=0) <= (_EMPTY_STRING if text_of is _string else 0):
            return Recorded(("",), np.where(which[self.order], 0, NONE))
        values, index = numbered(list(map(bytes, raws)))
        return Recorded(tuple(map(text_of, values)), self.filled(which, index))

    def among(self, names: Sequence[str], which: Bools, field: str) -> Ints:
        """Return the index of each text among ``names``; -1 if it is missing or not among them."""
        values, index = numbered(list(map(attrgetter(field), self.values(which))))
        number = {name: i for i, name in enumerate(names)}
        found = [NONE if value is None else number.get(printable(str(value), MOST_NAME), NONE) for value in values]
        return self.filled(which, np.array(found, np.int64)[index])

    def filled(self, which: Bools, values: Ints) -> Ints:
        """Return a column with these values of the events of ``which``; -1 for all others."""
        column = np.full(len(self.args), NONE, np.int64)
        column[which] = values
        return column[self.order]


def _with_duration(raw: RawTrace, kinds: Set[Any], where: str) -> tuple[list[Event], Ints, Ints, int]:
    events = [event for event in raw.events if event.ph == "X"]
    begin_ns, duration_ns = _times(events, "ts", where), _times(events, "dur", where)
    if len(events) and duration_ns.min() < 0:
        raise TraceError(f"{where} has a negative duration: {_described(events[int(np.argmin(duration_ns))])}")
    if float(duration_ns.sum(dtype=np.float64)) > MOST_SUM_NS:
        raise TraceError(f"{where} has durations of over 146 years in all")
    lost_halves = 0
    if not kinds.isdisjoint("BE"):
        try:
            paired, begins, ends, lost_halves = pairs_of(raw.events)
        except TimeProblemError:
            raise TraceError(f'{where} has an event of ph "B" or "E" without a usable time') from None
        events += paired
        begin_ns, duration_ns = np.append(begin_ns, begins), np.append(duration_ns, ends - begins)
    if not events:
        raise TraceError(
            f"{where} has no events with a duration: nothing was recorded, or it is not a trace of torch.profiler"
        )
    return events, begin_ns, begin_ns + duration_ns, lost_halves


def _times(events: Sequence[Event], field: str, where: str) -> Ints:
    try:
        return times_ns(list(map(attrgetter(field), events)))
    except TimeProblemError as problem:
        raise TraceError(f"{where} has an event without a usable time: {_described(events[problem.index])}") from None


def _described(event: Event) -> str:
    times = (time if time is None or isinstance(time, (int, float, str)) else bytes(time).decode() or None
             for time in (event.ts, event.dur))  # fmt: skip
    ts, dur = times
    return f"{str(event.name)[:60]!r} with ts {str(ts)[:40]}, dur {str(dur)[:40]}"


def numbered(values: Sequence[Any]) -> tuple[list[Any], Ints]:
    """Return the distinct values in order of first occurrence, and the index of each value among them."""
    different = list(dict.fromkeys(values))
    number = {value: i for i, value in enumerate(different)}
    return different, np.fromiter(map(number.__getitem__, values), np.int64, len(values))


def _of_mtia(events: Sequence[Event], category: Ints) -> tuple[Ints, list[Args]]:
    """Return the categories and arguments of events; the device of MTIA's work is its process."""
    changed = [args or _NO_ARGS for args in map(attrgetter("args"), events)]
    kernels = np.flatnonzero(category == CATEGORY_IDS["kernel"]).tolist()
    for i in [i for i in kernels if events[i].cat == MTIA_WORK]:
        event, given = events[i], changed[i]
        if event.name in _MTIA_EVENTS:
            category[i] = CATEGORY_IDS["other"]
        elif event.name == _MTIA_COPY:
            category[i] = CATEGORY_IDS["gpu_memcpy"]
        changed[i] = msgspec.structs.replace(
            given,
            device=event.pid if given.device is None else given.device,
            stream=event.tid if given.stream is None else given.stream,
            bytes=given.size if given.bytes is None else given.bytes,
        )
    return category, changed


def _categories(events: Sequence[Event], names: Sequence[str], name: Ints) -> Ints:
    categories, category = numbered(list(map(attrgetter("cat"), events)))
    ids = np.array(
        [CATEGORY_IDS[CATEGORIES.get(str(category_name).lower(), "other")] for category_name in categories], np.int64
    )[category]
    is_annotation = np.array([event_name.startswith(_ANNOTATIONS) for event_name in names], np.bool_)[name]
    return np.where(is_annotation & (ids == CATEGORY_IDS["cpu_op"]), CATEGORY_IDS["user_annotation"], ids)


def _text(value: str | bytes | None) -> str:
    """Return a text. JSON is returned as in the file, without its spaces."""
    if isinstance(value, bytes):
        value = value[: 2 * MOST_NAME].decode("utf-8", "replace").replace(" ", "").replace("\n", "")
    return printable(value or "", MOST_NAME)


def _string(value: bytes) -> str:
    """Return a string of JSON; "" for anything else."""
    try:
        return printable(msgspec.json.decode(value, type=str), MOST_STACK)
    except (msgspec.DecodeError, UnicodeDecodeError):  # includes values of other types
        return ""


def _inputs(shapes: Recorded, reader: _Reader, is_operator: Bools) -> tuple[Ints, tuple[tuple[str, ...], ...]]:
    """Return the distinct shapes, types and values of operators' inputs, and the index of those of each event."""
    parts = (shapes, reader.written(is_operator, "types", _text), reader.written(is_operator, "values", _text))
    rows = np.flatnonzero(shapes.index != NONE)
    index = np.zeros(len(rows), np.int64)
    firsts = index[:1]
    for part in parts:
        if len(part.texts) > 1:
            _, firsts, index = np.unique(
                index * len(part.texts) + part.index[rows], return_index=True, return_inverse=True
            )
    inputs = np.full(len(shapes.index), NONE, np.int64)
    inputs[rows] = index
    columns = ([part.texts[i] for i in part.index[rows[firsts]].tolist()] for part in parts)
    return inputs, tuple(zip(*columns, strict=True))


def _messages(reader: _Reader, is_kernel: Bools) -> Messages:
    dtypes, dtype = numbered([args.dtype for args in reader.values(is_kernel)])
    sizes = [None if name is None else element_bytes(name) for name in dtypes]
    size = reader.filled(is_kernel, np.array([NONE if known is None else known for known in sizes], np.int64)[dtype])

    def bytes_of(field: str) -> Ints:
        elements = reader.integers(is_kernel, field)
        is_known = (elements >= 0) & (elements < MOST_ELEMENTS) & (size > 0)
        return np.where(is_known, elements, NONE) * np.where(is_known, size, 1)

    return Messages(
        bytes_of("elements_in"),
        bytes_of("elements_out"),
        reader.integers(is_kernel, "group_size"),
        reader.written(is_kernel, "group_name", _text),
        reader.written(is_kernel, "group_ranks", _text),
        reader.integers(is_kernel, "sequence"),
    )


def element_bytes(dtype: str) -> int | None:
    """Return the bytes of one element of a type, by its name in torch or in a trace; None if unknown."""
    given = dtype.lower()
    return None if "complex" in given else next((size for name, size in _BYTES_OF.items() if name in given), None)


def _memory_of_devices(devices: Sequence[dict[str, Any]]) -> dict[int, int]:
    sizes = ((i, _integer_or_none(device.get("totalGlobalMem"))) for i, device in enumerate(devices))
    return {i: size for i, size in sizes if size is not None and size > 0}


def _capability(devices: Sequence[dict[str, Any]]) -> int | None:
    if not devices or "AMD" in str(devices[0].get("name", "AMD")):
        return None
    major, minor = (_integer_or_none(devices[0].get(key)) for key in ("computeMajor", "computeMinor"))
    return None if major is None or minor is None else 10 * major + minor


def _integers(values: list[Any]) -> Ints:
    if set(map(type, values)) <= {int, type(None)}:
        try:
            return np.array([NONE if value is None else value for value in values], np.int64)
        except OverflowError:
            pass
    return np.array([NONE if (integer := _integer_or_none(value)) is None else integer for value in values], np.int64)


def _integer_or_none(value: Any) -> int | None:
    try:
        number = int(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return number if -_BEYOND_64_BITS <= number < _BEYOND_64_BITS else None


def _floats(values: Iterable[Any]) -> Floats:
    return np.array([value if isinstance(value, (int, float)) else np.nan for value in values], np.float64)


def _samples(events: Sequence[Event], where: str) -> Samples:
    at_ns = _times(events, "ts", where)
    order = np.argsort(at_ns, kind="stable")
    lines, line = numbered([event.name for event in events])
    return Samples(at_ns[order], line[order], tuple(printable(str(text), MOST_NAME) for text in lines))


def _memory(events: Sequence[Event], where: str) -> Memory:
    at_ns = _times(events, "ts", where)
    order = np.argsort(at_ns, kind="stable")
    arguments = [events[i].args or _NO_ARGS for i in order.tolist()]
    return Memory(
        at_ns[order],
        *(
            _integers([getattr(args, name) for args in arguments])
            for name in ("memory_bytes", "device_type", "device_id", "allocated", "reserved")
        ),
    )
