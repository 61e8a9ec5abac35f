"""The events of a trace as columns: one numpy array a field, names as numbers."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from training_profiler.errors import TraceError
from training_profiler.trace.reading import Args, Event, RawTrace

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]
NONE: Final = -1  # in columns of what an event may lack

# What older versions of Kineto called them.
CATEGORIES: Final = {
    "kernel": "kernel",
    "memcpy": "gpu_memcpy",
    "gpu_memcpy": "gpu_memcpy",
    "memset": "gpu_memset",
    "gpu_memset": "gpu_memset",
    "operator": "cpu_op",
    "cpu_op": "cpu_op",
    "runtime": "cuda_runtime",
    "cuda_runtime": "cuda_runtime",
    "cuda_driver": "cuda_runtime",
    "hip_runtime": "cuda_runtime",
    "user_annotation": "user_annotation",
    "gpu_user_annotation": "gpu_user_annotation",
    "python_function": "python_function",
    "overhead": "overhead",
}
CATEGORY_NAMES: Final = (*dict.fromkeys(CATEGORIES.values()), "other")
_CATEGORY_IDS: Final = {name: i for i, name in enumerate(CATEGORY_NAMES)}
GPU_CATEGORIES: Final = ("kernel", "gpu_memcpy", "gpu_memset")
_NO_ARGS: Final = Args()


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
class Columns:
    """Events with a duration, in order of their begin; row i of each array is one event."""

    names: tuple[str, ...]
    threads: tuple[tuple[Any, Any], ...]  # (pid, tid)
    name: Ints  # index into names
    category: Ints  # index into CATEGORY_NAMES
    thread: Ints  # index into threads
    begin_ns: Ints
    end_ns: Ints
    device: Ints
    stream: Ints
    correlation: Ints  # the same for a launch and what it launched
    external: Ints  # the operator that launched it
    bytes: Ints
    occupancy: NDArray[np.float64]  # %; NaN unknown
    blocks_per_sm: NDArray[np.float64]
    args: tuple[Args, ...]
    memory: Memory
    device_names: tuple[str, ...]
    world_size: int | None
    rank: int | None
    compute_capability: int | None  # 80 for 8.0, of the first device; None where it is not NVIDIA's

    def is_of(self, *categories: str) -> Bools:
        """Return which events are of one of these categories."""
        return np.isin(self.category, [_CATEGORY_IDS[category] for category in categories])

    def is_gpu(self) -> Bools:
        """Return which events are work of a device; nothing else is, even if it carries a stream."""
        return self.is_of(*GPU_CATEGORIES)

    def named(self, is_wanted: Any) -> Bools:
        """Return which events have a name for which ``is_wanted(name)`` is true."""
        table = np.fromiter((bool(is_wanted(name)) for name in self.names), np.bool_, len(self.names))
        return table[self.name] if len(self.names) else np.zeros(len(self.name), np.bool_)


def columns_of(raw: RawTrace, where: str) -> Columns:
    """Return the columns of a trace; ``where`` is its file, for messages.

    Raises:
        TraceError: a time is missing, no number or negative.
    """
    events = [event for event in raw.events if event.ph == "X"]
    if not events:
        raise TraceError(f"{where} has no events with a duration: it is not a trace of torch.profiler")
    begin_ns = _times_ns([event.ts for event in events], events, where)
    duration_ns = _times_ns([event.dur for event in events], events, where)
    if (duration_ns < 0).any():
        first = int(np.flatnonzero(duration_ns < 0)[0])
        raise TraceError(f"{where} has a negative duration ({events[first].dur} us, {events[first].name[:60]!r})")
    order = np.argsort(begin_ns, kind="stable")
    events = [events[i] for i in order.tolist()]
    args = [event.args or _NO_ARGS for event in events]
    names, name = _numbered([event.name for event in events])
    threads, thread = _numbered([(event.pid, event.tid) for event in events])
    categories, category = _numbered([event.cat for event in events])
    category_ids = [_CATEGORY_IDS[CATEGORIES.get(one.lower(), "other")] for one in categories]
    stream = _integers([one.stream for one in args])
    return Columns(
        names=tuple(names),
        threads=tuple(threads),
        name=name,
        category=np.array(category_ids, np.int64)[category],
        thread=thread,
        begin_ns=begin_ns[order],
        end_ns=begin_ns[order] + duration_ns[order],
        device=_integers([one.device for one in args]),
        stream=stream,
        correlation=_integers([one.correlation for one in args]),
        external=_integers([one.external_id if one.external_id is not None else one.external_id_old for one in args]),
        bytes=_integers([one.bytes if one.bytes is not None else one.memory_bytes for one in args]),
        occupancy=_floats([one.occupancy for one in args]),
        blocks_per_sm=_floats([one.blocks_per_sm for one in args]),
        args=tuple(args),
        memory=_memory([event for event in raw.events if event.ph == "i" and event.name == "[memory]"], where),
        device_names=tuple(str(device.get("name", "")) for device in raw.devices),
        world_size=_integer_or_none(raw.distributed.get("world_size")),
        rank=_integer_or_none(raw.distributed.get("rank")),
        compute_capability=_capability(raw.devices),
    )


def _capability(devices: list[dict[str, Any]]) -> int | None:
    if not devices or "AMD" in str(devices[0].get("name", "AMD")):
        return None
    major, minor = (_integer_or_none(devices[0].get(key)) for key in ("computeMajor", "computeMinor"))
    return None if major is None or minor is None else 10 * major + minor


def _numbered(values: list[Any]) -> tuple[list[Any], Ints]:
    numbers: dict[Any, int] = {}
    column = np.fromiter((numbers.setdefault(value, len(numbers)) for value in values), np.int64, len(values))
    return list(numbers), column


def _times_ns(times_us: Sequence[Any], events: Sequence[Event], where: str) -> Ints:
    """Return times in whole ns, from us as numbers or as written."""
    kinds = set(map(type, times_us))
    if kinds <= {int}:
        array = np.array(times_us, np.int64)
        return array * 1000
    if kinds <= {int, float} and all(abs(time) < 2**42 for time in times_us if type(time) is int):
        exact = np.array(times_us, np.float64)
        if np.isfinite(exact).all():
            return np.rint(exact * 1000).astype(np.int64)
    try:
        return np.array([_ns_of(time) for time in times_us], np.int64)
    except (TypeError, ValueError, OverflowError):
        broken = next(i for i, time in enumerate(times_us) if _ns_or_none(time) is None)
        event = events[broken]
        raise TraceError(
            f"{where} has an event without a usable time (ts {event.ts!r}, dur {event.dur!r}, {event.name[:60]!r})"
        ) from None


def _ns_or_none(time: Any) -> int | None:
    try:
        return _ns_of(time)
    except (TypeError, ValueError, OverflowError):
        return None


def _ns_of(time: Any) -> int:
    """Return microseconds as whole nanoseconds, digit for digit where they are given as text.

    Raises:
        TypeError, ValueError, OverflowError: it is no finite number, or none of 64 bits.
    """
    if isinstance(time, int):
        ns = time * 1000
    elif isinstance(time, float):
        ns = round(time * 1000)
    elif isinstance(time, str):
        whole, _, fraction = time.strip().strip('"').partition(".")
        if "e" in time.lower() or not fraction.isdigit():
            ns = round(float(time.strip('"')) * 1000) if fraction or "e" in time.lower() else int(whole) * 1000
        else:
            digits = int((fraction + "000")[:3])
            ns = int(whole) * 1000 + (-digits if whole.startswith("-") else digits)
    else:
        raise TypeError(time)
    if not -(2**62) < ns < 2**62:
        raise OverflowError(time)
    return ns


def _integers(values: list[Any]) -> Ints:
    try:
        return np.array([NONE if value is None else value for value in values], np.int64)
    except (TypeError, ValueError, OverflowError):
        return np.array([_integer_or_none(value) or NONE for value in values], np.int64)


def _integer_or_none(value: Any) -> int | None:
    try:
        number = int(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return number if -(2**62) < number < 2**62 else None


def _floats(values: list[Any]) -> NDArray[np.float64]:
    return np.array([value if isinstance(value, (int, float)) else np.nan for value in values], np.float64)


def _memory(events: list[Event], where: str) -> Memory:
    at_ns = _times_ns([event.ts for event in events], events, where)
    order = np.argsort(at_ns, kind="stable")
    args = [events[i].args or _NO_ARGS for i in order.tolist()]
    return Memory(
        at_ns[order],
        *(
            _integers([getattr(one, name) for one in args])
            for name in ("memory_bytes", "device_type", "device_id", "allocated", "reserved")
        ),
    )
