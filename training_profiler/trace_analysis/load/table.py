"""Turns decoded events into columns. Of each event only the fields of its category are read."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from operator import attrgetter
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from training_profiler.errors import TraceError
from training_profiler.recording.known_sections import SAMPLED_LINE
from training_profiler.text import printable
from training_profiler.trace_analysis.load.arguments import Arguments, integer_or_none, integers
from training_profiler.trace_analysis.load.begin_end import pairs_of
from training_profiler.trace_analysis.load.columns import (
    CATEGORIES,
    CATEGORY_IDS,
    GPU_CATEGORIES,
    NONE,
    Bools,
    Columns,
    Ints,
    Memory,
    Messages,
    Recorded,
    Samples,
    is_of,
)
from training_profiler.trace_analysis.load.numbers import Numbers, numbered
from training_profiler.trace_analysis.load.pieces import NoPiecesError
from training_profiler.trace_analysis.load.reader import Args, Event, RawTrace, read_events, read_parts
from training_profiler.trace_analysis.load.times import TimeProblemError, times_ns
from training_profiler.units import counted

_NO_ARGS: Final = Args()
MOST_NAME: Final = 2_000  # characters; kernels of templates have long names
MOST_STACK: Final = 20_000
NO_NAME: Final = "(no name)"
MTIA_WORK: Final = "mtia_ccp_events"
_MTIA_COPY: Final = "dma_request"
_MTIA_EVENTS: Final = ("event_wait", "event_record")  # occupy a stream, compute nothing
MOST_THREADS: Final = 1_000
MOST_DEVICES: Final = 256
MOST_ELEMENTS: Final = 2**58  # of a message; more would not fit into 64 bits of bytes
MOST_SUM_NS: Final = 2**62
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
Rows = dict[str, NDArray[Any]]  # columns by name, all of the same length


def read_columns(path: Path) -> Columns:
    """Return the columns of the trace in ``path``.

    Raises:
        TraceError: The file cannot be read or is not a trace. The message has one line.
    """
    try:
        return columns_of(read_parts(path), str(path))
    except (TraceError, NoPiecesError):  # read at once, it may be mended; else what is wrong is said of the whole file
        return columns_of([read_events(path)], str(path))


def columns_of(parts: Iterable[RawTrace], where: str) -> Columns:
    """Return the columns of a trace; ``where`` is its file, for messages.

    Raises:
        TraceError: a time is missing, no number or negative, or no event has a duration.
    """
    table = _Table(where)
    for part in parts:
        table.add(part)
    return table.columns()


class _Table:
    """The rows of all parts of a trace. Names and texts have the same number in each."""

    def __init__(self, where: str) -> None:
        self._where = where
        self._count = 0
        self._spans: list[Rows] = []
        self._halves: list[Rows] = []
        self._memory: list[Rows] = []
        self._samples: list[Rows] = []
        self._kinds = Numbers()  # (name, category, pid, tid)
        self._categories = np.empty(0, np.int64)  # of the kinds
        self._lines = Numbers()
        self._texts: dict[str, Numbers] = defaultdict(Numbers)
        self._devices: list[dict[str, Any]] = []
        self._distributed: dict[str, Any] = {}
        self._notes: tuple[str, ...] = ()

    def add(self, part: RawTrace) -> None:
        """Add the events of a part.

        Raises:
            TraceError: A time is missing, no number or negative.
        """
        phases = set(map(attrgetter("ph"), part.events))
        self._count += len(part.events)
        self._devices = part.devices or self._devices
        self._distributed = part.distributed or self._distributed
        self._notes += part.notes
        spans = [event for event in part.events if event.ph == "X"]
        begin_ns, duration_ns = self._times(spans, "ts"), self._times(spans, "dur")
        if spans and duration_ns.min() < 0:
            at = _described(spans[int(np.argmin(duration_ns))])
            raise TraceError(f"{self._where} has a negative duration: {at}")
        self._spans.append(self._rows(spans) | {"begin_ns": begin_ns, "duration_ns": duration_ns})
        if not phases.isdisjoint("BE"):
            self._add_halves([event for event in part.events if event.ph in ("B", "E")])
        if "i" in phases:
            self._add_instants([event for event in part.events if event.ph == "i"])

    def _add_halves(self, halves: Sequence[Event]) -> None:
        try:
            at_ns = times_ns([event.ts for event in halves])
        except TimeProblemError:
            raise TraceError(f'{self._where} has an event of ph "B" or "E" without a usable time') from None
        is_begin = np.array([event.ph == "B" for event in halves], np.bool_)
        self._halves.append(self._rows(halves) | {"begin_ns": at_ns, "is_begin": is_begin})

    def _add_instants(self, instants: Sequence[Event]) -> None:
        changes = [event for event in instants if event.name == "[memory]"]
        args = [event.args or _NO_ARGS for event in changes]
        fields = ("memory_bytes", "device_type", "device_id", "allocated", "reserved")
        self._memory.append(
            {"at_ns": self._times(changes, "ts")}
            | {field: integers(list(map(attrgetter(field), args))) for field in fields}
        )
        lines = [event for event in instants if event.cat == SAMPLED_LINE]
        self._samples.append(
            {"at_ns": self._times(lines, "ts"), "line": self._lines.of([event.name for event in lines])}
        )

    def _rows(self, events: Sequence[Event]) -> Rows:
        kind = self._kinds.of(list(map(attrgetter("name", "cat", "pid", "tid"), events)))
        category = self._category(kind)
        is_gpu = is_of(category, *GPU_CATEGORIES)
        args = _arguments(events, is_gpu)
        is_kernel, is_call, is_operator = (is_of(category, of) for of in ("kernel", "cuda_runtime", "cpu_op"))
        works, kernels, operators = (Arguments(args, which) for which in (is_gpu, is_kernel, is_operator))
        marks = Arguments(args, is_operator | is_of(category, "user_annotation"))
        rows: Rows = {
            "kind": kind,
            "category": category,
            "device": works.integers("device"),
            "stream": works.integers("stream"),
            "correlation": Arguments(args, is_gpu | is_call).integers("correlation"),
            "external": Arguments(args, is_gpu | is_call | is_operator).integers("external_id", "external_id_old"),
            "bytes": Arguments(args, is_gpu & ~is_kernel).integers("bytes", "memory_bytes"),
            "kernel": Arguments(args, is_call).numbers("kernel", self._texts["kernel"]),
            # Kineto writes 0 if it cannot estimate the occupancy.
            "occupancy": kernels.floats("occupancy", unknown=0),
            "blocks_per_sm": kernels.floats("blocks_per_sm"),
        }
        for field in ("elements_in", "elements_out", "group_size", "sequence"):
            rows[field] = kernels.integers(field)
        for read, fields in (
            (kernels.numbers, ["collective", "dtype"]),
            (kernels.written, ["group_name", "group_ranks"]),
            (operators.numbers, ["module"]),
            (operators.written, ["dims", "types", "values"]),
            (marks.numbers, ["stack"]),
        ):
            rows |= {field: read(field, self._texts[field]) for field in fields}
        return rows

    def _category(self, kind: Ints) -> Ints:
        count = len(self._kinds) - len(self._categories)
        new = [_category_of(name, category) for name, category, _, _ in islice(reversed(self._kinds), count)]
        self._categories = np.append(self._categories, np.array(new[::-1], np.int64))
        return self._categories[kind]

    def _times(self, events: Sequence[Event], field: str) -> Ints:
        try:
            return times_ns(list(map(attrgetter(field), events)))
        except TimeProblemError as problem:
            at = _described(events[problem.index])
            raise TraceError(f"{self._where} has an event without a usable time: {at}") from None

    def columns(self) -> Columns:
        """Return the columns of all events.

        Raises:
            TraceError: No event has a duration, or the file has more than is read.
        """
        rows, lost_halves = self._whole_rows()
        begin_ns = rows["begin_ns"]
        if not len(begin_ns):
            raise TraceError(
                f"{self._where} has no events with a duration: nothing was recorded, or it is not a trace of "
                "torch.profiler"
            )
        if float(rows["duration_ns"].sum(dtype=np.float64)) > MOST_SUM_NS:
            raise TraceError(f"{self._where} has durations of over 146 years in all")
        rows = _taken(rows, np.argsort(begin_ns, kind="stable"))
        names, name, nameless = self._names(rows["kind"])
        threads, thread = self._threads(rows["kind"])
        _check_number(len(np.unique(rows["device"])), "devices", MOST_DEVICES, self._where)
        shapes, types, values = (self._recorded(rows, field, _text) for field in ("dims", "types", "values"))
        inputs, input_texts = _inputs((shapes, types, values))
        return Columns(
            events=self._count,
            names=tuple(names),
            threads=tuple(threads),
            name=name,
            category=rows["category"],
            thread=thread,
            begin_ns=rows["begin_ns"],
            end_ns=rows["begin_ns"] + rows["duration_ns"],
            device=rows["device"],
            stream=rows["stream"],
            correlation=rows["correlation"],
            external=rows["external"],
            bytes=rows["bytes"],
            launches=_among(names, self._texts["kernel"], rows["kernel"]),
            messages=self._messages(rows),
            collective=rows["collective"],
            collectives=tuple(map(_text, self._texts["collective"])),
            shapes=shapes.index,
            shape_texts=shapes.texts,
            inputs=inputs,
            input_texts=input_texts,
            call_stacks=self._recorded(rows, "stack", _string),
            script_modules=self._recorded(rows, "module", _string),
            occupancy=rows["occupancy"],
            blocks_per_sm=rows["blocks_per_sm"],
            memory=self._memory_events(),
            samples=self._sampled_lines(),
            device_names=tuple(printable(str(device.get("name", ""))) for device in self._devices),
            device_bytes=_memory_of_devices(self._devices),
            world_size=integer_or_none(self._distributed.get("world_size")),
            rank=integer_or_none(self._distributed.get("rank")),
            compute_capability=_capability(self._devices),
            lost_halves=lost_halves,
            notes=self._notes + nameless,
        )

    def _whole_rows(self) -> tuple[Rows, int]:
        """Return the rows of whole events, and the number of lost halves of device work."""
        if not self._halves:
            return _joined(self._spans), 0
        halves = _joined(self._halves)
        is_begin = halves.pop("is_begin")
        _, thread = self._threads(halves["kind"])
        begins, ends, alone = pairs_of(halves["begin_ns"], is_begin, thread)
        lost = int(is_of(halves["category"][alone], *GPU_CATEGORIES).sum())
        paired = _taken(halves, begins)
        paired["duration_ns"] = halves["begin_ns"][ends] - paired["begin_ns"]
        return _joined([*self._spans, paired]), lost

    def _names(self, kind: Ints) -> tuple[list[str], Ints, tuple[str, ...]]:
        """Return the distinct names, the index of each event's name, and a note if events have none."""
        given, name_of = numbered([name for name, *_ in self._kinds])
        names = [NO_NAME if text is None else printable(str(text), MOST_NAME) for text in given]
        name = name_of[kind]
        nameless = int((name == given.index(None)).sum()) if None in given else 0
        return names, name, (f"{counted(nameless, 'event')} without a name",) if nameless else ()

    def _threads(self, kind: Ints) -> tuple[list[tuple[Any, Any]], Ints]:
        """Return the distinct threads and streams, and the index of that of each event."""
        processes, numbers = Numbers(), Numbers()
        process = processes.of([pid for _, _, pid, _ in self._kinds])
        number = numbers.of([tid for *_, tid in self._kinds])
        pairs, thread = np.unique((process * len(numbers) + number)[kind], return_inverse=True)
        _check_number(len(pairs), "threads and streams", MOST_THREADS, self._where)
        pids, tids = list(processes), list(numbers)
        return [(pids[pair // len(tids)], tids[pair % len(tids)]) for pair in pairs.tolist()], thread

    def _recorded(self, rows: Rows, field: str, text_of: Callable[[Any], str]) -> Recorded:
        return Recorded(tuple(map(text_of, self._texts[field])) or ("",), rows[field])

    def _messages(self, rows: Rows) -> Messages:
        sizes = [None if name is None else element_bytes(name) for name in self._texts["dtype"]]
        size = np.array([*(NONE if known is None else known for known in sizes), NONE], np.int64)[rows["dtype"]]

        def bytes_of(elements: Ints) -> Ints:
            is_known = (elements >= 0) & (elements < MOST_ELEMENTS) & (size > 0)
            return np.where(is_known, elements, NONE) * np.where(is_known, size, 1)

        return Messages(
            bytes_of(rows["elements_in"]),
            bytes_of(rows["elements_out"]),
            rows["group_size"],
            self._recorded(rows, "group_name", _text),
            self._recorded(rows, "group_ranks", _text),
            rows["sequence"],
        )

    def _memory_events(self) -> Memory:
        rows = _in_order_of_time(self._memory) or dict.fromkeys(
            ("at_ns", "memory_bytes", "device_type", "device_id", "allocated", "reserved"), np.empty(0, np.int64)
        )
        return Memory(*rows.values())

    def _sampled_lines(self) -> Samples:
        rows = _in_order_of_time(self._samples) or dict.fromkeys(("at_ns", "line"), np.empty(0, np.int64))
        return Samples(rows["at_ns"], rows["line"], tuple(printable(str(text), MOST_NAME) for text in self._lines))


def _joined(parts: Sequence[Rows]) -> Rows:
    return {key: np.concatenate([part[key] for part in parts]) for key in parts[0]} if parts else {}


def _taken(rows: Mapping[str, NDArray[Any]], order: Ints) -> Rows:
    return {key: values[order] for key, values in rows.items()}


def _in_order_of_time(parts: Sequence[Rows]) -> Rows:
    rows = _joined(parts)
    return _taken(rows, np.argsort(rows["at_ns"], kind="stable")) if rows else {}


def _check_number(count: int, what: str, most: int, where: str) -> None:
    if count > most:
        raise TraceError(f"{where} has events of {count} {what}; at most {most} are read")


def _among(names: Sequence[str], texts: Iterable[Any], index: Ints) -> Ints:
    """Return the index among ``names`` of the text of each event; -1 if it is missing or not among them."""
    number = {name: i for i, name in enumerate(names)}
    found = [NONE if text is None else number.get(printable(str(text), MOST_NAME), NONE) for text in texts]
    return np.array([*found, NONE], np.int64)[index]


def _described(event: Event) -> str:
    times = (time if time is None or isinstance(time, (int, float, str)) else bytes(time).decode() or None
             for time in (event.ts, event.dur))  # fmt: skip
    ts, dur = times
    return f"{str(event.name)[:60]!r} with ts {str(ts)[:40]}, dur {str(dur)[:40]}"


def _category_of(name: Any, given: Any) -> int:
    """Return the category of events. An annotation of old versions has the category of operators."""
    category = CATEGORIES.get(str(given).lower(), "other")
    if category == "cpu_op" and str(name).startswith(_ANNOTATIONS):
        category = "user_annotation"
    elif given == MTIA_WORK:
        category = "other" if name in _MTIA_EVENTS else "gpu_memcpy" if name == _MTIA_COPY else category
    return CATEGORY_IDS[category]


def _arguments(events: Sequence[Event], is_gpu: Bools) -> list[Args]:
    """Return the arguments of events; the device of MTIA's work is its process."""
    changed = [args or _NO_ARGS for args in map(attrgetter("args"), events)]
    for i in np.flatnonzero(is_gpu).tolist():
        event, given = events[i], changed[i]
        if event.cat == MTIA_WORK:
            changed[i] = msgspec.structs.replace(
                given,
                device=event.pid if given.device == NONE else given.device,
                stream=event.tid if given.stream == NONE else given.stream,
                bytes=given.size if given.bytes == NONE else given.bytes,
            )
    return changed


def _text(value: str | bytes | None) -> str:
    """Return a text. JSON is returned as in the file, without its spaces."""
    if isinstance(value, bytes):
        value = value[: 2 * MOST_NAME].decode("utf-8", "replace").replace(" ", "").replace("\n", "")
    return printable(value or "", MOST_NAME)


def _string(value: Any) -> str:
    return printable(value, MOST_STACK) if isinstance(value, str) else ""


def _inputs(parts: Sequence[Recorded]) -> tuple[Ints, tuple[tuple[str, ...], ...]]:
    """Return the distinct shapes, types and values of operators' inputs, and the index of those of each event."""
    rows = np.flatnonzero(parts[0].index != NONE)
    index = np.zeros(len(rows), np.int64)
    firsts = index[:1]
    for part in parts:
        if len(part.texts) > 1:
            _, firsts, index = np.unique(
                index * len(part.texts) + part.index[rows], return_index=True, return_inverse=True
            )
    inputs = np.full(len(parts[0].index), NONE, np.int64)
    inputs[rows] = index
    columns = ([part.texts[i] for i in part.index[rows[firsts]].tolist()] for part in parts)
    return inputs, tuple(zip(*columns, strict=True))


def element_bytes(dtype: str) -> int | None:
    """Return the bytes of one element of a type, by its name in torch or in a trace; None if unknown."""
    given = dtype.lower()
    return None if "complex" in given else next((size for name, size in _BYTES_OF.items() if name in given), None)


def _memory_of_devices(devices: Sequence[dict[str, Any]]) -> dict[int, int]:
    sizes = ((i, integer_or_none(device.get("totalGlobalMem"))) for i, device in enumerate(devices))
    return {i: size for i, size in sizes if size is not None and size > 0}


def _capability(devices: Sequence[dict[str, Any]]) -> int | None:
    if not devices or "AMD" in str(devices[0].get("name", "AMD")):
        return None
    major, minor = (integer_or_none(devices[0].get(key)) for key in ("computeMajor", "computeMinor"))
    return None if major is None or minor is None else 10 * major + minor
