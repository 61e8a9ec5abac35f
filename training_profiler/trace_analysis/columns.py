"""The events of a trace as columns: one numpy array per field, names as numbers."""

import struct
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from training_profiler.trace_analysis import known_names

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]


class Numbers(dict[Any, int]):
    """Distinct values in order of first occurrence, each with its number."""

    def __missing__(self, value: Any) -> int:
        """Return the number of a value that is new."""
        number = self[value] = len(self)
        return number

    def of(self, values: Iterable[Any]) -> Ints:
        """Return the number of each value."""
        return packed(*map(self.__getitem__, values))


def packed(*values: int) -> Ints:
    """Return whole numbers as an array. It takes half the time of ``numpy.fromiter``.

    Raises:
        struct.error: A value is not a whole number, or does not fit into 64 bits.
    """
    return np.frombuffer(struct.pack(f"{len(values)}q", *values), np.int64)


def numbered(values: Sequence[Any]) -> tuple[list[Any], Ints]:
    """Return the distinct values in order of first occurrence, and the index of each value among them."""
    numbers = Numbers()
    index = numbers.of(values)
    return list(numbers), index


NONE: Final = -1  # for values that an event lacks


# Times and values by process, counter and key of the value; NaN for no value.
Counters = dict[tuple[str, str, str], tuple[Ints, Floats]]


class Intervals(NamedTuple):
    """Disjoint intervals in ascending order, none touching the next; begin inclusive, end exclusive."""

    begin_ns: Ints
    end_ns: Ints

    @classmethod
    def of(cls, begin_ns: Ints, end_ns: Ints) -> "Intervals":
        """Return the union of intervals, which may overlap and come in any order.

        An empty interval is kept if nothing covers it: work too short to be measured still divides the gap around it.
        """
        if not len(begin_ns):
            return NOTHING
        order = np.argsort(begin_ns, kind="stable")
        begin_ns, end_ns = begin_ns[order], np.maximum.accumulate(end_ns[order])
        firsts = np.flatnonzero(np.append(True, begin_ns[1:] > end_ns[:-1]))
        return cls(begin_ns[firsts], end_ns[np.append(firsts[1:], len(begin_ns)) - 1])

    def __or__(self, other: "Intervals") -> "Intervals":
        """Return the union of both."""
        return Intervals.of(*map(np.concatenate, zip(self, other, strict=True)))

    @property
    def length_ns(self) -> Ints:
        """The length of each."""
        return self.end_ns - self.begin_ns

    @property
    def total_ns(self) -> int:
        """The total length."""
        return int(self.length_ns.sum())

    @property
    def between(self) -> "Intervals":
        """The time between each interval and the next."""
        return Intervals(self.end_ns[:-1], self.begin_ns[1:])

    def before(self, at_ns: Ints) -> Ints:
        """Return how much of the time before each of ``at_ns`` the intervals cover."""
        if not len(self.begin_ns):
            return np.zeros(len(at_ns), np.int64)
        index = np.searchsorted(self.begin_ns, at_ns, side="right")  # the number of intervals that have begun
        last = np.maximum(index - 1, 0)
        into = np.clip(at_ns - self.begin_ns[last], 0, self.length_ns[last])
        return np.where(index > 0, np.append(0, np.cumsum(self.length_ns))[last] + into, 0)

    def within(self, begin_ns: Ints, end_ns: Ints) -> Ints:
        """Return how much of each window from ``begin_ns`` to ``end_ns`` the intervals cover; windows may overlap."""
        return self.before(end_ns) - self.before(begin_ns)


NOTHING: Final = Intervals(np.empty(0, np.int64), np.empty(0, np.int64))
_NO_END: Final = 2**63


@dataclass(frozen=True, slots=True)
class Timeline:
    """From each ``begin_ns`` to the next, ``row`` is the innermost open event; -1 for none."""

    begin_ns: Ints
    row: Ints

    def spent(self) -> tuple[Ints, Ints]:
        """Return the rows that are open, one after another, and for how long each is the innermost."""
        is_open = self.row[:-1] != NONE  # the last is the end
        return self.row[:-1][is_open], np.diff(self.begin_ns)[is_open]

    def at(self, at_ns: Ints) -> Ints:
        """Return the row that is open at each time; -1 for none."""
        if not len(self.begin_ns):
            return np.full(len(at_ns), NONE, np.int64)
        place = np.searchsorted(self.begin_ns, at_ns, side="right") - 1
        return np.where(place >= 0, self.row[np.maximum(place, 0)], NONE)


def _newest(rows: Sequence[int], begins: Sequence[int], ends: Sequence[int]) -> Timeline:
    at: list[int] = []
    row: list[int] = []
    # The stack of open events begins with none of them, which has no end.
    open_rows, open_ends = [NONE], [_NO_END]
    for place, begin, end in (*zip(rows, begins, ends, strict=True), (NONE, _NO_END - 1, _NO_END)):
        while open_ends[-1] <= begin:
            ended = open_ends[-1]  # the newest closes, and with it all that have ended by then
            while open_ends[-1] <= ended:
                open_rows.pop()
                open_ends.pop()
            at.append(ended)
            row.append(open_rows[-1])
        open_rows.append(place)
        open_ends.append(end)
        at.append(begin)
        row.append(place)
    return Timeline(packed(*at[:-1]), packed(*row[:-1]))


# Their names in older versions of Kineto, and for other devices (Kineto's ActivityType.h has all of them). XPU and
# backends of PrivateUse1 have kernels and copies as CUDA has. Events of MTIA's control processor are its device work;
# table.py separates copies from computation.
_GIVEN: Final = {
    "kernel": "kernel mtia_ccp_events",
    "gpu_memcpy": "memcpy gpu_memcpy",
    "gpu_memset": "memset gpu_memset",
    "cpu_op": "operator cpu_op",
    "cuda_runtime": "runtime cuda_runtime cuda_driver hip_runtime xpu_runtime xpu_driver mtia_runtime hpu_op "
    "glow_runtime privateuse1_runtime privateuse1_driver",
    **{name: name for name in ("user_annotation", "gpu_user_annotation", "python_function", "overhead")},
}
CATEGORIES: Final = {name: category for category, names in _GIVEN.items() for name in names.split()}
CATEGORY_NAMES: Final = (*_GIVEN, "other")
CATEGORY_IDS: Final = {name: i for i, name in enumerate(CATEGORY_NAMES)}
GAP_CATEGORY: Final = "gap"  # of what an annotated copy has more than its trace
PATH_CATEGORY: Final = "critical_path"
OWN_PROCESS: Final = "training-profiler"
GPU_CATEGORIES: Final = ("kernel", "gpu_memcpy", "gpu_memset")
STEP_NAME: Final = "ProfilerStep#"
_OF_THE_LOOP: Final = ("Optimizer.step#", "enumerate(DataLoader)")


def is_of(category: Ints, *names: str) -> Bools:
    """Return which of these categories are among ``names``."""
    is_wanted = np.zeros(len(CATEGORY_NAMES), np.bool_)
    is_wanted[[CATEGORY_IDS[name] for name in names]] = True
    return is_wanted[category]


def summed(group: Ints, values: Ints, size: int) -> Ints:
    """Return the exact sum of the values of each group from 0 to ``size``."""
    sums = np.zeros(size, np.int64)
    np.add.at(sums, group, values)
    return sums


@dataclass(frozen=True, slots=True)
class Memory:
    """Events of the allocators, in order of time; bytes."""

    at_ns: Ints
    change: Ints
    device_type: Ints  # 0 the host, 1 CUDA or ROCm
    device: Ints
    allocated: Ints  # after it; -1 unknown
    reserved: Ints


@dataclass(frozen=True, slots=True)
class Recorded:
    """A text that some events have."""

    texts: tuple[str, ...]
    index: Ints  # of the text of each event; -1 for none

    def of(self, row: int) -> str:
        """Return the text of the event in a row; "" for none."""
        return self.texts[self.index[row]] if self.index[row] != NONE else ""


@dataclass(frozen=True, slots=True)
class Samples:
    """The lines of the program that the training thread ran, as our own captures sample them; in order of time."""

    at_ns: Ints
    line: Ints  # index into lines
    lines: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Messages:
    """What a trace records of the collective that a kernel is a part of; -1 if unknown, and for all other events."""

    sent_bytes: Ints  # the input
    received_bytes: Ints  # the output
    group_size: Ints
    group_name: Recorded  # as in the file
    group_ranks: Recorded  # as in the file: a list, or the text of one
    sequence: Ints  # the number of the collective in its group


def _ordered(part: Any, order: Ints) -> Any:
    """Return columns of events in another order."""
    if isinstance(part, np.ndarray):
        return part[order]
    if not isinstance(part, (Columns, Messages, Recorded)):
        return part  # of no event
    return replace(part, **{each.name: _ordered(getattr(part, each.name), order) for each in fields(part)})


@dataclass(frozen=True)
class Columns:
    """Events with a duration, in order of their begin; row i of each array is one event."""

    events: int  # in the file, of any kind
    names: tuple[str, ...]
    threads: tuple[tuple[Any, Any], ...]  # (pid, tid)
    name: Ints  # index into names; -1 for none
    category: Ints  # index into CATEGORY_NAMES
    thread: Ints  # index into threads
    begin_ns: Ints
    end_ns: Ints
    device: Ints
    stream: Ints
    correlation: Ints  # the same for a launch and the work that it launched
    external: Ints  # the operator that launched it
    launches: Ints  # index into names: the kernel that a call launches, where the trace has it
    bytes: Ints  # copied
    messages: Messages
    collective: Recorded  # what the trace records of the kernel, beside its name
    shapes: Recorded  # of the operator's inputs
    inputs: Ints  # index into input_texts: shapes, types and values of the operator's inputs
    input_texts: tuple[tuple[str, ...], ...]
    call_stacks: Recorded  # of Python, of operators and annotations
    script_modules: Recorded  # of TorchScript, of operators
    occupancy: Floats  # %; NaN unknown
    blocks_per_sm: Floats
    memory: Memory
    samples: Samples
    counters: Counters
    device_names: tuple[str, ...]
    device_bytes: dict[int, int]  # of memory, by index; only known ones
    world_size: int | None
    rank: int | None
    compute_capability: int | None  # 80 for 8.0, of the first device; None if it is not from NVIDIA
    lost_halves: int  # of device work: begins without an end, and ends without a begin
    notes: tuple[str, ...]  # what of the file could not be read
    skew_ns: int = 0  # what the file's times of devices are early by; here they are not

    def without_skew(self, skew_ns: int) -> "Columns":
        """Return the columns with all times of devices later by ``skew_ns``."""
        late_ns = np.where(self.is_of(*GPU_CATEGORIES, "gpu_user_annotation"), skew_ns, 0)
        begin_ns, end_ns = self.begin_ns + late_ns, self.end_ns + late_ns
        corrected = replace(self, begin_ns=begin_ns, end_ns=end_ns, skew_ns=skew_ns)
        ordered: Columns = _ordered(corrected, np.argsort(begin_ns, kind="stable"))
        return ordered

    @property
    def length_ns(self) -> Ints:
        """How long each event lasts."""
        return self.end_ns - self.begin_ns

    @cached_property
    def named_and_shaped(self) -> tuple[list[tuple[str, str]], Ints]:
        """The pairs of a name and the shapes of inputs ("" for none), and the index of that of each event."""
        texts = ("", *self.shapes.texts)
        pairs, pair = np.unique(self.name * len(texts) + self.shapes.index + 1, return_inverse=True)
        return [(self.names[key // len(texts)], texts[key % len(texts)]) for key in pairs.tolist()], pair

    def name_of(self, row: int) -> str:
        """Return the name of the event in a row; "" for -1."""
        return "" if row == NONE else self.names[self.name[row]]

    def is_of(self, *categories: str) -> Bools:
        """Return which events are of one of these categories."""
        return is_of(self.category, *categories)

    def name_of_device(self, index: int) -> str:
        """Return the name of a device; "" if unknown. Some traces of ROCm list one device by another number."""
        if 0 <= index < len(self.device_names):
            return self.device_names[index]
        return self.device_names[0] if len(set(self.device_names)) == 1 else ""

    def is_gpu(self) -> Bools:
        """Return which events are device work. Other events can have a stream as well."""
        return self.is_of(*GPU_CATEGORIES)

    def is_step(self) -> Bools:
        """Return which events are marked steps."""
        return self.named(lambda name: name.startswith(STEP_NAME), "user_annotation")

    def is_section(self) -> Bools:
        """Return which events are annotations of the host, steps excluded."""
        return self.is_of("user_annotation") & ~self.is_step()

    def is_graph_launch(self) -> Bools:
        """Return which events are calls that replay a graph."""
        return self.named(known_names.LAUNCH_GRAPH.search, "cuda_runtime")

    @cached_property
    def main_thread(self) -> int:
        """The thread that runs the training loop; -1 if there is none.

        Marked steps are on that thread. Without marks, updates and fetches of batches are; without those it is the
        thread with most operators, which may be that of the backward pass.
        """
        for which in (
            self.is_step(),
            self.named(lambda name: name.startswith(_OF_THE_LOOP), "user_annotation"),
            self.is_of("cpu_op", "user_annotation"),
        ):
            if which.any():
                return int(np.bincount(self.thread.compress(which)).argmax())
        return NONE

    def span(self, which: Bools | Ints) -> Intervals:
        """Return when any of these events was open: events that overlap, on one thread or several, count once."""
        return Intervals.of(self.begin_ns[which], self.end_ns[which])

    def timeline(self, which: Bools) -> Timeline:
        """Return the timeline of the events of ``which``. If several are open, the newest counts."""
        rows = np.flatnonzero(which)
        if not len(rows):
            return Timeline(rows, rows)
        rows = rows[np.lexsort((-self.end_ns[rows], self.begin_ns[rows]))]
        return _newest(rows.tolist(), self.begin_ns[rows].tolist(), self.end_ns[rows].tolist())

    def named(self, is_wanted: Callable[[str], Any], *categories: str, among: Bools | None = None) -> Bools:
        """Return which events have a name for which ``is_wanted(name)`` is true, asked once a name.

        Only events of these ``categories``, or of ``among``, are asked about; all events without either.
        """
        among = self.is_of(*categories) if categories else among
        rows = np.arange(len(self.name)) if among is None else np.flatnonzero(among)
        names = self.name[rows]
        table = np.zeros(len(self.names) + 1, np.bool_)  # the last is of events without a name
        table[names] = True
        for i in np.flatnonzero(table[:-1]).tolist():
            table[i] = bool(is_wanted(self.names[i]))
        table[NONE] = False
        has_name = np.zeros(len(self.name), np.bool_)
        has_name[rows] = table[names]
        return has_name
