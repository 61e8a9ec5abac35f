"""Times and fields of events as columns. Of an event's arguments only the fields of its category are read."""

import struct
from collections.abc import Callable, Hashable, Mapping, Sequence
from decimal import Decimal
from itertools import repeat
from operator import attrgetter, is_
from typing import Any, Final, NamedTuple

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
DIGITS: Final = 3  # of nanoseconds in a time in us
MOST_NS: Final = 2**62  # 146 years; sums and differences of two still fit into 64 bits


class TimeProblemError(ValueError):
    """An invalid time; ``index`` is its place in the list."""

    def __init__(self, index: int) -> None:
        super().__init__(index)
        self.index = index


def times_ns(times: Sequence[msgspec.Raw]) -> Ints:
    """Return times in whole ns; given are us as the file has them, numbers or texts.

    Raises:
        TimeProblemError: A time is missing, is not a finite number or exceeds 64 bits of ns.
    """
    written = _as_bytes(times)
    are_in_ns = all(time[-4:-3] == b"." for time in written)  # as Kineto writes times: 1234567.890
    numbers = [time.replace(b".", b"") for time in written] if are_in_ns else written
    try:
        found, unit_ns = packed(*map(int, numbers)), 1 if are_in_ns else NS_PER_US
        if not len(found) or max(found.max(), -found.min()) < MOST_NS // unit_ns:
            return found * unit_ns
    except (ValueError, struct.error):  # they are not all whole numbers of 64 bits
        pass
    return packed(*(_ns_of(time, index) for index, time in enumerate(written)))


def _as_bytes(values: Sequence[msgspec.Raw]) -> list[bytes]:
    parts = b"\0".join(values).split(b"\0")  # takes a third of the time of a call of bytes for each
    return parts if len(parts) == len(values) else list(map(bytes, values))


def _ns_of(written: bytes, index: int) -> int:
    """Return a time in ns, a number or a text; what is finer is rounded half to even."""
    try:
        ns = Decimal(written.decode().strip('" ')).scaleb(DIGITS)
        if abs(ns) < MOST_NS:
            return round(ns)
    except (ValueError, ArithmeticError):  # no number, or not a finite one
        pass
    raise TimeProblemError(index)


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
# Events of MTIA by name that are copies, and that occupy a stream and compute nothing.
_OF_MTIA: Final = {"dma_request": "gpu_memcpy", "event_wait": "other", "event_record": "other"}
# Old versions give these the category of operators.
_ANNOTATIONS: Final = ("ProfilerStep#", "Optimizer.", "enumerate(DataLoader)", "## ")


class Categories(Numbers):
    """The category of each pair of the file's category and a name, as an index into ``CATEGORY_NAMES``."""

    def __missing__(self, pair: tuple[Any, Any]) -> int:
        """Return the category of a pair that is new."""
        given, name = pair
        category = CATEGORIES.get(str(given).lower(), "other")
        if given == MTIA_WORK:
            category = _OF_MTIA.get(name, category)
        elif category == "cpu_op" and str(name).startswith(_ANNOTATIONS):
            category = "user_annotation"
        number = self[pair] = CATEGORY_IDS[category]
        return number


Values = list[Any]
_BEYOND_64_BITS: Final = 2**63
_MOST_FLOAT: Final = 1e15
# Categories whose events have the same fields; no category is in two groups.
_KERNEL: Final = ("kernel",)
_COPY: Final = ("gpu_memcpy", "gpu_memset")
_CALL: Final = ("cuda_runtime",)
_OPERATOR: Final = ("cpu_op",)
_MARK: Final = ("user_annotation",)
_GROUPS: Final = (_KERNEL, _COPY, _CALL, _OPERATOR, _MARK)


def integers(values: Sequence[Any], _: Any = None) -> Ints:
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


def _floats(values: Values, _: Numbers) -> Floats:
    """Return numbers; NaN for what is none, or too large to add up."""
    is_number = (isinstance(value, (int, float)) and abs(value) <= _MOST_FLOAT for value in values)
    return np.array([value if known else np.nan for value, known in zip(values, is_number, strict=True)], np.float64)


def _occupancy(values: Values, numbers: Numbers) -> Floats:
    occupancy = _floats(values, numbers)
    return np.where(occupancy == 0, np.nan, occupancy)  # Kineto writes 0 if it cannot estimate it


def _numbered(values: Values, numbers: Numbers) -> Ints:
    """Return the number of each value; lists and objects count as missing."""
    try:
        return numbers.of(values)
    except TypeError:
        return numbers.of([value if isinstance(value, Hashable) else None for value in values])


def _written(values: Values, numbers: Numbers) -> Ints:
    """Return the number of what the file has for a field, as bytes; those of a missing one are empty."""
    if all(map(is_, values, repeat(MISSING))):
        return np.full(len(values), numbers[b""])
    return numbers.of(_as_bytes(values))


class _Field(NamedTuple):
    """A column of the argument of that name, the groups of events that have it, and how it is read.

    ``older`` is the argument that older traces have instead. Whole numbers from ``below`` on are unknown: products of
    columns have to fit into 64 bits.
    """

    column: str
    groups: tuple[tuple[str, ...], ...]
    read: Callable[[Values, Numbers], NDArray[Any]] = integers
    older: str = ""
    below: int = 2**53

    def of(self, args: Sequence[Args], numbers: Numbers) -> NDArray[Any]:
        """Return the values of these arguments."""
        values = self.read(list(map(attrgetter(self.column), args)), numbers)
        if self.older and (values == NONE).any():
            values = np.where(values == NONE, self.read(list(map(attrgetter(self.older), args)), numbers), values)
        if self.read is integers and not NONE <= values.min() <= values.max() < self.below:
            values = np.where((values >= NONE) & (values < self.below), values, NONE)
        return values


_FIELDS: Final = (
    _Field("device", (_KERNEL, _COPY), below=2**22),
    _Field("stream", (_KERNEL, _COPY), below=2**40),
    _Field("correlation", (_KERNEL, _COPY, _CALL)),
    _Field("external", (_KERNEL, _COPY, _CALL, _OPERATOR), older="external_old"),
    _Field("bytes", (_COPY,), older="memory_bytes"),
    _Field("kernel", (_CALL,), _numbered),
    _Field("occupancy", (_KERNEL,), _occupancy),
    _Field("blocks_per_sm", (_KERNEL,), _floats),
    *(_Field(column, (_KERNEL,)) for column in ("elements_in", "elements_out", "group_size", "sequence")),
    *(_Field(column, (_KERNEL,), _numbered) for column in ("collective", "dtype")),
    *(_Field(column, (_KERNEL,), _written) for column in ("group_name", "group_ranks")),
    _Field("module", (_OPERATOR,), _numbered),
    *(_Field(column, (_OPERATOR,), _written) for column in ("dims", "types", "values")),
    _Field("stack", (_OPERATOR, _MARK), _numbered),
)
_FLOATS: Final = (_floats, _occupancy)
Rows = dict[str, NDArray[Any]]  # columns by name, all of the same length


def argument_rows(category: Ints, args: Sequence[Args], texts: Mapping[str, Numbers]) -> Rows:
    """Return each column of the arguments, with a row for every event; -1 or NaN if an event lacks it."""
    found = [(group, rows) for group in _GROUPS if len(rows := np.flatnonzero(is_of(category, *group)))]
    of_group = {group: [args[i] for i in rows.tolist()] for group, rows in found}
    columns: Rows = {}
    for field in _FIELDS:
        missing = np.array([np.nan if field.read in _FLOATS else NONE])
        column = np.broadcast_to(missing, len(args))  # takes no memory
        for group, rows in found:
            if group in field.groups:
                values = field.of(of_group[group], texts[field.column])
                if field.read is not integers or (values != NONE).any():
                    column = column if column.flags.writeable else column.copy()
                    column[rows] = values
        columns[field.column] = column
    return columns


def joined(parts: Sequence[Rows], order_by: str = "") -> Rows:
    """Return the rows of all parts, in order of a column if it is given; the parts are empty afterwards."""
    order = (
        np.argsort(np.concatenate([part[order_by] for part in parts]), kind="stable") if parts and order_by else None
    )
    rows: Rows = {}
    for key in list(parts[0]) if parts else ():  # the memory of one column at a time is taken and given back
        columns = [part.pop(key) for part in parts]
        if all(column.strides == (0,) for column in columns):
            rows[key] = np.broadcast_to(max(columns, key=len)[:1], sum(map(len, columns)))
        else:
            column = np.concatenate(columns)
            rows[key] = column if order is None else column[order]
    return rows
