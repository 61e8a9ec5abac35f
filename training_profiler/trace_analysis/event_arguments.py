"""Fields of the events' arguments as columns. Of an event only the fields of its category are read."""

import math
import struct
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice, repeat
from operator import is_
from typing import Any, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from training_profiler.trace_analysis.columns import (
    CATEGORIES,
    CATEGORY_IDS,
    NONE,
    Bools,
    Floats,
    Ints,
    Numbers,
    is_of,
    packed,
)
from training_profiler.trace_analysis.reader import MISSING, Args

NS_PER_US: Final = 1000
# A float of so many microseconds still distinguishes nanoseconds: 2**42 us is 51 days.
EXACT_BELOW_US: Final = float(2**42)
MOST_NS: Final = 2**62  # 146 years; sums and differences of two still fit into 64 bits


class TimeProblemError(ValueError):
    """An invalid time; ``index`` is its place in the list."""

    def __init__(self, index: int) -> None:
        super().__init__(index)
        self.index = index


class InexactTimeError(ValueError):
    """A time is a float that may not be exact to the nanosecond, and has to be read as the file has it."""


def times_ns(times_us: Sequence[Any]) -> Ints:
    """Return times in whole ns. Given are us as numbers, as strings or as the bytes of the file.

    Raises:
        TimeProblemError: A time is missing, is not a finite number or exceeds 64 bits of ns.
        InexactTimeError: A time is too large a float.
    """
    try:
        return _in_ns(packed(*times_us))
    except struct.error:  # they are not all whole numbers
        kinds = set(map(type, times_us))
    if kinds == {msgspec.Raw}:
        written = [bytes(time) for time in times_us]
        if all(time[-4:-3] == b"." for time in written):  # as Kineto writes times: 1234567.890
            try:
                return _checked([int(time.replace(b".", b"")) for time in written])
            except ValueError:  # a time with an exponent, in quotes, ...
                pass
        times_us = [time.decode() for time in written]
    elif kinds <= {int, float}:
        with suppress(OverflowError):  # of a whole number that no float can be
            array = np.array(times_us, np.float64)  # JSON has neither NaN nor infinity
            if (np.abs(array) < EXACT_BELOW_US).all():
                return np.rint(array * NS_PER_US).astype(np.int64)
    if any(type(time) is float and EXACT_BELOW_US <= abs(time) < math.inf for time in times_us):
        raise InexactTimeError
    return _checked([_ns_of(time, index) for index, time in enumerate(times_us)])


def _in_ns(times_us: Ints) -> Ints:
    most_us = MOST_NS // NS_PER_US
    if len(times_us) and (times_us.max() > most_us or times_us.min() < -most_us):
        return _checked([time * NS_PER_US for time in times_us.tolist()])
    return times_us * NS_PER_US


def _checked(times: list[int]) -> Ints:
    try:
        array = np.array(times, np.int64)
        if not len(array) or (array.max() < MOST_NS and array.min() > -MOST_NS):
            return array
    except OverflowError:
        pass
    raise TimeProblemError(next(i for i, time in enumerate(times) if not -MOST_NS < time < MOST_NS))


def _ns_of(time: Any, index: int) -> int:
    """Return a time in us as ns. Text is read digit by digit and rounds half up to the nanosecond."""
    try:
        if isinstance(time, int):
            return time * NS_PER_US
        if isinstance(time, float):
            return round(time * NS_PER_US)
        if isinstance(time, str):
            return _ns_of_text(time.strip().strip('"').strip())
    except (ValueError, OverflowError):
        pass
    raise TimeProblemError(index)


def _ns_of_text(text: str) -> int:
    is_negative = text.startswith("-")
    whole, _, fraction = text.lstrip("+-").partition(".")
    if not (whole + fraction).isdecimal():
        return round(float(text) * NS_PER_US)  # with an exponent; raises if it is NaN, infinity or not a number
    ns = int(whole or 0) * NS_PER_US + int((fraction + "000")[:3]) + (fraction[3:4] >= "5")
    return -ns if is_negative else ns


def pairs_of(at_ns: Ints, is_begin: Bools, thread: Ints) -> tuple[Ints, Ints, Ints]:
    """Return the indices of begins, those of their ends, and those of halves without a counterpart.

    An end closes the newest open event of its thread. The recording began or ended during an event that has one half.
    """
    begins, threads = is_begin.tolist(), thread.tolist()
    open_of: dict[int, list[int]] = {}
    pairs: list[tuple[int, int]] = []
    alone: list[int] = []
    for i in np.argsort(at_ns, kind="stable").tolist():
        open_halves = open_of.setdefault(threads[i], [])
        if begins[i]:
            open_halves.append(i)
        elif open_halves:
            pairs.append((open_halves.pop(), i))
        else:
            alone.append(i)
    alone += [i for open_halves in open_of.values() for i in open_halves]
    pairs.sort()
    firsts, lasts = np.array(pairs, np.int64).reshape(-1, 2).T
    return firsts, lasts, np.array(alone, np.int64)


MTIA_WORK: Final = "mtia_ccp_events"
_MTIA_COPY: Final = "dma_request"
_MTIA_EVENTS: Final = ("event_wait", "event_record")  # occupy a stream, compute nothing
# Old versions give these the category of operators.
_ANNOTATIONS: Final = ("ProfilerStep#", "Optimizer.", "enumerate(DataLoader)", "## ")
_PLAIN, _ANNOTATION, _IS_COPY, _EVENT = range(4)  # what a name says
_OF_MTIA: Final = len(CATEGORY_IDS)


def _table() -> Ints:
    """Return the category for each one of the file (the last is MTIA's) and for what the name says."""
    table = np.repeat(np.append(np.arange(_OF_MTIA), CATEGORY_IDS[CATEGORIES[MTIA_WORK]])[:, None], 4, axis=1)
    table[CATEGORY_IDS["cpu_op"], _ANNOTATION] = CATEGORY_IDS["user_annotation"]
    table[_OF_MTIA, _IS_COPY] = CATEGORY_IDS["gpu_memcpy"]
    table[_OF_MTIA, _EVENT] = CATEGORY_IDS["other"]
    return table


_TABLE: Final = _table()


class Categories:
    """The categories of events whose names and tracks (category, pid, tid) are numbered; both may grow."""

    def __init__(self, names: Numbers, tracks: Numbers) -> None:
        self._of_names = _Growing(names, _named)
        self._of_tracks = _Growing(tracks, lambda track: _given(track[0]))

    def of(self, name: Ints, track: Ints) -> Ints:
        """Return the category of each event."""
        return _TABLE[self._of_tracks.values()[track], self._of_names.values()[name]]


class _Growing:
    """A number for each distinct value; only new values are looked at."""

    def __init__(self, numbers: Numbers, number_of: Callable[[Any], int]) -> None:
        self._numbers = numbers
        self._number_of = number_of
        self._known = np.empty(0, np.int64)

    def values(self) -> Ints:
        new = list(islice(reversed(self._numbers), len(self._numbers) - len(self._known)))
        if new:
            self._known = np.append(self._known, [self._number_of(value) for value in reversed(new)])
        return self._known


def _named(name: Any) -> int:
    if str(name).startswith(_ANNOTATIONS):
        return _ANNOTATION
    return _IS_COPY if name == _MTIA_COPY else _EVENT if name in _MTIA_EVENTS else _PLAIN


def _given(category: Any) -> int:
    return _OF_MTIA if category == MTIA_WORK else CATEGORY_IDS[CATEGORIES.get(str(category).lower(), "other")]


Values = list[Any]
_BEYOND_64_BITS: Final = 2**63
_MOST_FLOAT: Final = 1e15
_NUMBERS: Final = {int, float, type(None)}
# Categories whose events have the same fields; no category is in two groups.
_KERNEL: Final = ("kernel",)
_COPY: Final = ("gpu_memcpy", "gpu_memset")
_CALL: Final = ("cuda_runtime",)
_OPERATOR: Final = ("cpu_op",)
_MARK: Final = ("user_annotation",)
_GROUPS: Final = (_KERNEL, _COPY, _CALL, _OPERATOR, _MARK)


def integers(values: Sequence[Any]) -> Ints:
    """Return whole numbers; -1 for what is none, or does not fit into 64 bits."""
    try:
        return packed(*values)
    except struct.error:
        known = (integer_or_none(value) for value in values)
        return np.array([NONE if integer is None else integer for integer in known], np.int64)


def integer_or_none(value: Any) -> int | None:
    """Return a whole number of 64 bits, or None."""
    try:
        number = int(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return number if -_BEYOND_64_BITS <= number < _BEYOND_64_BITS else None


def _integers(values: Values, _: Numbers) -> Ints:
    return integers(values)


def _floats(values: Values, _: Numbers) -> Floats:
    """Return numbers; NaN for what is none, or too large to add up."""
    if not set(map(type, values)) <= _NUMBERS:
        values = [value if isinstance(value, (int, float)) else None for value in values]
    try:
        numbers = np.array(values, np.float64)
    except OverflowError:  # a whole number that no float can be
        numbers = np.array(
            [None if value is None or abs(value) > _MOST_FLOAT else value for value in values], np.float64
        )
    return np.where(np.abs(numbers) <= _MOST_FLOAT, numbers, np.nan)


def _occupancy(values: Values, numbers: Numbers) -> Floats:
    occupancy = _floats(values, numbers)
    return np.where(occupancy == 0, np.nan, occupancy)  # Kineto writes 0 if it cannot estimate it


def _numbered(values: Values, numbers: Numbers) -> Ints:
    """Return the number of each value; lists and objects count as missing."""
    try:
        if values[0] == values[-1] and values.count(values[0]) == len(values):  # takes a fifth of the time
            return np.full(len(values), numbers[values[0]])
        return numbers.of(values)
    except TypeError:
        return numbers.of([value if isinstance(value, Hashable) else None for value in values])


def _written(values: Values, numbers: Numbers) -> Ints:
    """Return the number of what the file has for a field, as bytes; those of a missing one are empty."""
    if all(map(is_, values, repeat(MISSING))):
        return np.full(len(values), numbers[b""])
    parts = b"\0".join(values).split(b"\0")  # takes a third of the time of a call of bytes for each
    return numbers.of(parts if len(parts) == len(values) else list(map(bytes, values)))


@dataclass(frozen=True, slots=True)
class _Field:
    """A column, the groups of events that have it, and how it is read; ``older`` is the field's older name.

    Whole numbers from ``below`` on are unknown: products of columns have to fit into 64 bits.
    """

    column: str
    groups: tuple[tuple[str, ...], ...]
    values: Callable[[Sequence[Args]], Values]  # a comprehension takes two thirds of the time of attrgetter
    read: Callable[[Values, Numbers], NDArray[Any]] = _integers
    older: Callable[[Sequence[Args]], Values] | None = None
    below: int = 2**53

    def of(self, args: Sequence[Args], numbers: Numbers) -> NDArray[Any]:
        """Return the values of these arguments."""
        values = self.read(self.values(args), numbers)
        if self.older is not None and (values == NONE).any():
            values = np.where(values == NONE, self.read(self.older(args), numbers), values)
        if self.read is _integers and len(values) and not NONE <= values.min() <= values.max() < self.below:
            values = np.where((values >= NONE) & (values < self.below), values, NONE)
        return values


_FIELDS: Final = (
    _Field("device", (_KERNEL, _COPY), lambda args: [each.device for each in args], below=2**22),
    _Field("stream", (_KERNEL, _COPY), lambda args: [each.stream for each in args], below=2**40),
    _Field("correlation", (_KERNEL, _COPY, _CALL), lambda args: [each.correlation for each in args]),
    _Field("external", (_KERNEL, _COPY, _CALL, _OPERATOR), lambda args: [each.external_id for each in args],
           older=lambda args: [each.external_id_old for each in args]),
    _Field("bytes", (_COPY,), lambda args: [each.bytes for each in args],
           older=lambda args: [each.memory_bytes for each in args]),
    _Field("kernel", (_CALL,), lambda args: [each.kernel for each in args], _numbered),
    _Field("occupancy", (_KERNEL,), lambda args: [each.occupancy for each in args], _occupancy),
    _Field("blocks_per_sm", (_KERNEL,), lambda args: [each.blocks_per_sm for each in args], _floats),
    _Field("elements_in", (_KERNEL,), lambda args: [each.elements_in for each in args]),
    _Field("elements_out", (_KERNEL,), lambda args: [each.elements_out for each in args]),
    _Field("group_size", (_KERNEL,), lambda args: [each.group_size for each in args]),
    _Field("sequence", (_KERNEL,), lambda args: [each.sequence for each in args]),
    _Field("collective", (_KERNEL,), lambda args: [each.collective for each in args], _numbered),
    _Field("dtype", (_KERNEL,), lambda args: [each.dtype for each in args], _numbered),
    _Field("group_name", (_KERNEL,), lambda args: [each.group_name for each in args], _written),
    _Field("group_ranks", (_KERNEL,), lambda args: [each.group_ranks for each in args], _written),
    _Field("module", (_OPERATOR,), lambda args: [each.module for each in args], _numbered),
    _Field("dims", (_OPERATOR,), lambda args: [each.dims for each in args], _written),
    _Field("types", (_OPERATOR,), lambda args: [each.types for each in args], _written),
    _Field("values", (_OPERATOR,), lambda args: [each.values for each in args], _written),
    _Field("stack", (_OPERATOR, _MARK), lambda args: [each.stack for each in args], _numbered),
)  # fmt: skip
_FLOATS: Final = (_floats, _occupancy)


Rows = dict[str, NDArray[Any]]  # columns by name, all of the same length


def joined(parts: Sequence[Rows]) -> Rows:
    """Return the rows of all parts."""
    return {key: np.concatenate([part[key] for part in parts]) for key in parts[0]} if parts else {}


class EventRows:
    """The rows of events, collected part by part; the columns of their arguments are put together at the end."""

    def __init__(self, texts: Mapping[str, Numbers]) -> None:
        self._texts = texts
        self._parts: list[Rows] = []
        self.count = 0
        self._rows: dict[tuple[str, ...], list[Ints]] = {group: [] for group in _GROUPS}
        self._values: dict[tuple[str, tuple[str, ...]], list[NDArray[Any]]] = {
            (field.column, group): [] for field in _FIELDS for group in field.groups
        }

    def add(self, args: Sequence[Args], rows: Rows) -> None:
        """Add the events of a part; ``rows`` holds what is not in their arguments."""
        self._parts.append(rows)
        for group in _GROUPS:
            which = np.flatnonzero(is_of(rows["category"], *group))
            if not len(which):
                continue
            self._rows[group].append(which + self.count)
            of_group = [args[i] for i in which.tolist()]
            for field in _FIELDS:
                if group in field.groups:
                    values = field.of(of_group, self._texts[field.column])
                    self._values[field.column, group].append(values)
        self.count += len(args)

    def rows(self) -> Rows:
        """Return the rows of all parts; nothing if there are no events."""
        return joined(self._parts) | dict(self._columns()) if self._parts else {}

    def rows_in_order(self) -> Rows:
        """Return the rows of all parts in order of their begin."""
        rows = joined(self._parts)
        self._parts.clear()
        order = np.argsort(rows["begin_ns"], kind="stable")
        for key in list(rows):
            rows[key] = rows.pop(key)[order]  # the memory of one column at a time is taken and given back
        place = np.empty_like(order)
        place[order] = np.arange(len(order))
        return rows | dict(self._columns(place))

    def _columns(self, place: Ints | None = None) -> Iterator[tuple[str, NDArray[Any]]]:
        """Yield each column by its name, with a row for every event; -1 or NaN if an event lacks it.

        ``place`` is the row of each event; the order in which they were added by default.
        """
        rows = {group: np.concatenate(parts) for group, parts in self._rows.items() if parts}
        if place is not None:
            rows = {group: place[which] for group, which in rows.items()}
        for field in _FIELDS:
            kind, missing = (np.float64, np.nan) if field.read in _FLOATS else (np.int64, NONE)
            known = [group for group in field.groups if group in rows]
            values = {group: np.concatenate(self._values.pop((field.column, group))) for group in known}
            if field.read is _integers and all((of_group == NONE).all() for of_group in values.values()):
                yield field.column, np.broadcast_to(np.int64(NONE), self.count)  # takes no memory
                continue
            column = np.full(self.count, missing, kind)
            for group, of_group in values.items():
                column[rows[group]] = of_group
            yield field.column, column
