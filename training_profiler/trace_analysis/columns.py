"""The events of a trace as columns: one numpy array per field, names as numbers."""

import struct
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

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
GPU_CATEGORIES: Final = ("kernel", "gpu_memcpy", "gpu_memset")
STEP_NAME: Final = "ProfilerStep#"


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


@dataclass(frozen=True, slots=True)
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
    collective: Ints  # index into collectives: what the trace records of the kernel, beside its name
    collectives: tuple[str, ...]
    shapes: Ints  # index into shape_texts: of the operator's inputs
    shape_texts: tuple[str, ...]
    inputs: Ints  # index into input_texts: shapes, types and values of the operator's inputs
    input_texts: tuple[tuple[str, ...], ...]
    call_stacks: Recorded  # of Python, of operators and annotations
    script_modules: Recorded  # of TorchScript, of operators
    occupancy: Floats  # %; NaN unknown
    blocks_per_sm: Floats
    memory: Memory
    samples: Samples
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
        return self.named(lambda name: name.startswith(STEP_NAME), self.is_of("user_annotation"))

    def named(self, is_wanted: Callable[[str], Any], among: Bools | None = None) -> Bools:
        """Return which events of ``among`` have a name for which ``is_wanted(name)`` is true, asked once a name."""
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
