"""Turns decoded events into columns. Of each event only the fields of its category are read."""

import re
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from operator import attrgetter
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np

from training_profiler.base.errors import TraceError
from training_profiler.base.sections import SAMPLED_LINE
from training_profiler.base.text import printable
from training_profiler.base.units import counted
from training_profiler.trace_analysis import counters, event_arguments, reader
from training_profiler.trace_analysis.columns import (
    CATEGORY_IDS,
    GAP_CATEGORY,
    GPU_CATEGORIES,
    NONE,
    PATH_CATEGORY,
    Columns,
    Ints,
    Memory,
    Messages,
    Numbers,
    Recorded,
    Samples,
    is_of,
    numbered,
)
from training_profiler.trace_analysis.event_arguments import Categories, Rows, TimeProblemError, integer_or_none, joined
from training_profiler.trace_analysis.reader import MISSING, Args, CounterEvent, RawTrace, TraceEvent

_NO_ARGS: Final = Args()
_OTHER_PHASES: Final = ("B", "E", "i")  # halves of events, and instants
_OF_MEMORY: Final = ("memory_bytes", "device_type", "device_id", "allocated", "reserved")
MOST_NAME: Final = 2_000  # characters; kernels of templates have long names
MOST_STACK: Final = 20_000
NO_NAME: Final = "(no name)"
MOST_THREADS: Final = 1_000
MOST_DEVICES: Final = 256
MOST_ELEMENTS: Final = 2**58  # of a message; more would not fit into 64 bits of bytes
MOST_SUM_NS: Final = 2**62
LEAST_UNREAD: Final = 10  # events of unknown categories that are said, if they are a good part of all
MOST_UNREAD: Final = 0.2
# By a part of the name; the first that a name has counts.
_BYTES_OF: Final = {
    **dict.fromkeys(("double", "long", "int64", "float64"), 8),
    **dict.fromkeys(("bfloat16", "float16"), 2),
    "float8": 1,
    **dict.fromkeys(("half", "short"), 2),
    "float": 4,
    "int8": 1,
    "int": 4,
    **dict.fromkeys(("byte", "char", "bool"), 1),
}


def read_columns(path: Path) -> Columns:
    """Return the columns of the trace in ``path``.

    Raises:
        TraceError: The file cannot be read or is not a trace. The message has one line.
    """
    try:
        return columns_of(reader.read_parts(path), str(path))
    except (TraceError, reader.NoPiecesError):  # read at once: it may lack its end, or what is wrong is said of all
        return columns_of([reader.read_events(path)], str(path))


_RANK: Final = re.compile(r"(\d+)_")  # what tools that join the traces of ranks put before each pid


def ranks_of(threads: Iterable[tuple[Any, Any]]) -> frozenset[int]:
    """Return the ranks of a trace that a tool made of those of several; nothing for any other."""
    found = [_RANK.match(pid) if isinstance(pid, str) else None for pid, _ in threads]
    return frozenset() if None in found else frozenset(int(match[1]) for match in found if match)


def read_ranks(path: Path, ranks: Collection[int]) -> dict[int, Columns]:
    """Return the columns of each rank of a joined trace that ``read_columns`` can read."""
    tables = {rank: _Table(str(path)) for rank in sorted(ranks)}
    of_file = RawTrace([], [], {"world_size": len(ranks)})
    rank = min(ranks)
    for part in _parts(path):
        of_file = RawTrace([], part.devices or of_file.devices, of_file.distributed | part.distributed)
        events: dict[int, list[TraceEvent]] = defaultdict(list)
        for event in part.events:
            match = _RANK.match(event.pid) if isinstance(event.pid, str) else None
            rank = int(match[1]) if match and int(match[1]) in tables else rank  # else of the rank before
            events[rank].append(event)
        for each, of_rank in events.items():
            of_counters = [event for event in part.counters if str(event.pid).startswith(f"{each}_")]
            tables[each].add(RawTrace(of_rank, [], {}, part.notes, of_counters))
    for each, table in tables.items():
        table.add(RawTrace([], of_file.devices, of_file.distributed | {"rank": each}))
    return {each: table.columns() for each, table in tables.items()}


def _parts(path: Path) -> Iterator[RawTrace]:
    try:
        yield from list(reader.read_parts(path))
    except (TraceError, reader.NoPiecesError):
        yield reader.read_events(path)


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
        self._names = Numbers()
        self._tracks = Numbers()  # (category, pid, tid)
        self._categories = Categories()
        self._texts: dict[str, Numbers] = defaultdict(Numbers)
        self._spans: list[Rows] = []
        self._halves: list[Rows] = []
        self._memory: list[Rows] = []
        self._samples: list[Rows] = []
        self._lines = Numbers()
        self._counters: counters.Samples = {}
        self._unread = 0  # samples of them
        self._devices: list[dict[str, Any]] = []
        self._distributed: dict[str, Any] = {}
        self._notes: tuple[str, ...] = ()

    def add(self, part: RawTrace) -> None:
        """Add the events of a part; a TraceError says that a time is missing, no number or negative."""
        self._count += len(part.events)
        self._devices = part.devices or self._devices
        self._distributed = part.distributed or self._distributed
        self._notes += part.notes
        spans = [event for event in part.events if event.ph == "X"]
        begin_ns, duration_ns = self._times(spans), self._times(spans, "dur")
        if spans and duration_ns.min() < 0:
            at = _described(spans[int(np.argmin(duration_ns))])
            raise TraceError(f"{self._where} has a negative duration: {at}")
        self._spans.append(self._rows(spans, {"begin_ns": begin_ns, "duration_ns": duration_ns}))
        rest = part.events if len(spans) < len(part.events) else []
        others = [event for event in rest if event.ph != "X" and event.ph in _OTHER_PHASES]
        self._add_halves([event for event in others if event.ph != "i"])
        self._add_instants([event for event in others if event.ph == "i"])
        self._unread += counters.add_samples(self._counters, part.counters, self._times(part.counters))

    def _add_halves(self, halves: Sequence[TraceEvent]) -> None:
        if not halves:
            return
        try:
            at_ns = event_arguments.times_ns([event.ts for event in halves])
        except TimeProblemError:
            raise TraceError(f'{self._where} has an event of ph "B" or "E" without a usable time') from None
        is_begin = np.array([event.ph == "B" for event in halves], np.bool_)
        self._halves.append(self._rows(halves, {"begin_ns": at_ns, "is_begin": is_begin}))

    def _add_instants(self, instants: Sequence[TraceEvent]) -> None:
        changes = [event for event in instants if event.name == "[memory]"]
        args = [event.args or _NO_ARGS for event in changes]
        self._memory.append(
            {"at_ns": self._times(changes)}
            | {field: event_arguments.integers(list(map(attrgetter(field), args))) for field in _OF_MEMORY}
        )
        lines = [event for event in instants if event.cat == SAMPLED_LINE]
        line = self._lines.of([event.name for event in lines])
        self._samples.append({"at_ns": self._times(lines), "line": line})

    def _rows(self, events: Sequence[TraceEvent], times: Rows) -> Rows:
        names, given = [event.name for event in events], [event.cat for event in events]
        # zip takes two thirds of the time of a tuple for each event.
        track = self._tracks.of(
            zip(given, [event.pid for event in events], [event.tid for event in events], strict=True)
        )
        category = self._categories.of(zip(given, names, strict=True))
        args = [event.args or _NO_ARGS for event in events]
        if any(each[0] == event_arguments.MTIA_WORK for each in self._tracks):
            args = list(map(_of_mtia, events, args))
        rows = times | {"name": self._names.of(names), "track": track, "category": category}
        return rows | event_arguments.argument_rows(category, args, self._texts)

    def _times(self, events: Sequence[TraceEvent | CounterEvent], field: str = "ts") -> Ints:
        try:
            return event_arguments.times_ns(list(map(attrgetter(field), events)))
        except TimeProblemError as problem:
            at = _described(events[problem.index])
            raise TraceError(f"{self._where} has an event without a usable time: {at}") from None

    def columns(self) -> Columns:
        """Return the columns of all events; a TraceError says that none has a duration, or that there are too many."""
        rows, lost_halves = self._whole_rows()
        if not len(rows["begin_ns"]):
            raise TraceError(
                f"{self._where} has no events with a duration: nothing was recorded, or it is not a trace of "
                "torch.profiler"
            )
        if float(rows["duration_ns"].sum(dtype=np.float64)) > MOST_SUM_NS:
            raise TraceError(f"{self._where} has durations of over 146 years in all")
        names = [NO_NAME if text is None else printable(str(text), MOST_NAME) for text in self._names]
        nameless = int((rows["name"] == self._names[None]).sum()) if None in self._names else 0
        said = [f"{counted(nameless, 'event')} without a name"] if nameless else []
        if self._unread:
            said.append(f"{counted(self._unread, 'sample')} of counters, not read: no number, or too many")
        threads, thread = self._threads(rows["track"])
        _check_number(len(set(rows["device"].tolist())), "devices", MOST_DEVICES, self._where)
        shapes, types, values = (self._recorded(rows, field, _text) for field in ("dims", "types", "values"))
        inputs, input_texts = _inputs((shapes, types, values))
        sizes = ((i, integer_or_none(device.get("totalGlobalMem"))) for i, device in enumerate(self._devices))
        samples = joined(self._samples, "at_ns")
        return Columns(
            events=self._count,
            names=tuple(names),
            threads=tuple(threads),
            name=rows["name"],
            category=rows["category"],
            thread=thread,
            begin_ns=rows["begin_ns"],
            end_ns=rows["begin_ns"] + rows["duration_ns"],
            device=rows["device"],
            stream=rows["stream"],
            correlation=rows["correlation"],
            external=rows["external"],
            bytes=rows["bytes"],
            launches=self._launched(names)[rows["kernel"]],
            messages=self._messages(rows),
            collective=self._recorded(rows, "collective", _text),
            shapes=shapes,
            inputs=inputs,
            input_texts=input_texts,
            call_stacks=self._recorded(rows, "stack", _string),
            script_modules=self._recorded(rows, "module", _string),
            occupancy=rows["occupancy"],
            blocks_per_sm=rows["blocks_per_sm"],
            memory=Memory(*joined(self._memory, "at_ns").values()),
            samples=Samples(
                samples["at_ns"], samples["line"], tuple(printable(str(line), MOST_NAME) for line in self._lines)
            ),
            counters={of: (np.array(at), np.array(values)) for of, (at, values) in self._counters.items()},
            device_names=tuple(printable(str(device.get("name") or "")) for device in self._devices),
            device_bytes={i: size for i, size in sizes if size is not None and size > 0},
            world_size=integer_or_none(self._distributed.get("world_size")),
            rank=integer_or_none(self._distributed.get("rank")),
            compute_capability=_capability(self._devices),
            lost_halves=lost_halves,
            notes=(*self._notes, *said, *_unread(rows, tracks=[str(each[0]) for each in self._tracks])),
        )

    def _whole_rows(self) -> tuple[Rows, int]:
        if not self._halves:
            return joined(self._spans, "begin_ns"), 0
        halves = joined(self._halves)
        is_begin = halves.pop("is_begin")
        _, thread = self._threads(halves["track"])
        begins, ends, alone = event_arguments.pairs_of(halves["begin_ns"], is_begin, thread)
        lost = int(is_of(halves["category"][alone], *GPU_CATEGORIES).sum())
        paired = {key: values[begins] for key, values in halves.items()}
        paired["duration_ns"] = halves["begin_ns"][ends] - paired["begin_ns"]
        return joined([*self._spans, paired], "begin_ns"), lost

    def _launched(self, names: Sequence[str]) -> Ints:
        """Return the name of each kernel that a call launches; the last is of calls without one."""
        number: dict[str | None, int] = {name: i for i, name in enumerate(names)}
        kernels = (None if text is None else printable(str(text), MOST_NAME) for text in self._texts["kernel"])
        return np.array([*(number.get(kernel, NONE) for kernel in kernels), NONE], np.int64)

    def _threads(self, track: Ints) -> tuple[list[tuple[Any, Any]], Ints]:
        threads, thread = numbered([(pid, tid) for _, pid, tid in self._tracks])
        thread = thread[track]
        is_used = np.bincount(thread, minlength=len(threads)) > 0
        used = np.flatnonzero(is_used).tolist()
        _check_number(len(used), "threads and streams", MOST_THREADS, self._where)
        return [threads[i] for i in used], (np.cumsum(is_used) - 1)[thread]

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


def _unread(rows: Rows, tracks: Sequence[str]) -> tuple[str, ...]:
    """Return a note where a good part of the events has a category that is not known; ``tracks`` are these by track."""
    own = [i for i, track in enumerate(tracks) if track in (GAP_CATEGORY, PATH_CATEGORY)]
    is_other = (rows["category"] == CATEGORY_IDS["other"]) & ~np.isin(rows["track"], own)
    count, all_of_them = int(is_other.sum()), len(is_other)
    if count < LEAST_UNREAD or count <= MOST_UNREAD * all_of_them:
        return ()
    usual = tracks[int(np.bincount(rows["track"][is_other]).argmax())]
    which = "no category" if usual in ("", "None") else f"a category that is not known, such as {printable(usual, 40)}"
    return (f"{count} of {all_of_them} events with a duration have {which}, and are not read",)


def _check_number(count: int, what: str, most: int, where: str) -> None:
    if count > most:
        raise TraceError(f"{where} has events of {count} {what}; at most {most} are read")


def _described(event: TraceEvent | CounterEvent) -> str:
    ts, dur = (_as_read(time)[:40] for time in (event.ts, getattr(event, "dur", MISSING)))
    return f"{str(event.name)[:60]!r} with ts {ts}, dur {dur}"


def _as_read(time: msgspec.Raw) -> str:
    try:
        return str(msgspec.json.decode(time))
    except ValueError:  # missing, or a number that no float can be
        return bytes(time).decode() or "None"


def _of_mtia(event: TraceEvent, given: Args) -> Args:
    """Return the arguments of an event with the device, the stream and the size that those of MTIA have elsewhere."""
    if event.cat != event_arguments.MTIA_WORK:
        return given
    return msgspec.structs.replace(
        given,
        device=event.pid if given.device == NONE else given.device,
        stream=event.tid if given.stream == NONE else given.stream,
        bytes=given.size if given.bytes == NONE else given.bytes,
    )


def _text(value: str | bytes | None) -> str:
    """Return a text. JSON is returned as in the file, without its spaces."""
    if isinstance(value, bytes):
        value = value[: 2 * MOST_NAME].decode("utf-8", "replace").replace(" ", "").replace("\n", "")
    return printable(value or "", MOST_NAME)


def _string(value: Any) -> str:
    return printable(value, MOST_STACK) if isinstance(value, str) else ""


def _inputs(parts: Sequence[Recorded]) -> tuple[Ints, tuple[tuple[str, ...], ...]]:
    """Return the distinct shapes, types and values of operators' inputs, and the index of those of each event."""
    rows, distinct = np.flatnonzero(parts[0].index != NONE), Numbers()
    inputs = np.full(len(parts[0].index), NONE, np.int64)
    inputs[rows] = distinct.of(zip(*((part.index[rows] % len(part.texts)).tolist() for part in parts), strict=True))
    return inputs, tuple(tuple(part.texts[i] for part, i in zip(parts, key, strict=True)) for key in distinct)


def element_bytes(dtype: str) -> int | None:
    """Return the bytes of one element of a type, by its name in torch or in a trace; None if unknown."""
    given = dtype.lower()
    return None if "complex" in given else next((size for name, size in _BYTES_OF.items() if name in given), None)


def _capability(devices: Sequence[dict[str, Any]]) -> int | None:
    if not devices or "AMD" in str(devices[0].get("name", "AMD")):
        return None
    major, minor = (integer_or_none(devices[0].get(key)) for key in ("computeMajor", "computeMinor"))
    return None if major is None or minor is None else 10 * major + minor
