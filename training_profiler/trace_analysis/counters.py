"""Counters of a trace (clocks, power, units of the device) beside when the device was busy and when it was idle."""

import re
from array import array
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from math import nan
from typing import Any, Final

import msgspec
import numpy as np

from training_profiler.trace_analysis.columns import OWN_PROCESS, Bools, Counters, Floats, Intervals, Ints
from training_profiler.trace_analysis.events import OneDevice, bounds_of
from training_profiler.trace_analysis.reader import CounterEvent

MOST_SERIES: Final = 1_000
MOST_VALUE: Final = 1e18  # sums over time stay finite
MOSTLY: Final = 0.9  # of the time of a sample, which then is of a busy device, or of an idle one
LEAST_CLOCKS: Final = 4  # samples of a busy device; fewer show no fall
BINS: Final = 400  # of a chart
_VALUES: Final = msgspec.json.Decoder(dict[str, float | None], strict=False)
# In the name of a counter or its process, which may have the rank in front: "0_GPU 1 Counters".
_DEVICE: Final = re.compile(r"(?i)(?<![a-z])(?:gpu|device)[ :]?(\d+)\b")
_CLOCK: Final = re.compile(r"(?i)^(?!.*mem).*clock.*mhz")
_UNIT: Final = re.compile(r"\(([^()]{1,8})\)$")


Samples = dict[tuple[str, str, str], tuple["array[int]", "array[float]"]]  # as ``Counters``


def add_samples(series: Samples, events: Iterable[CounterEvent], at_ns: Ints) -> int:
    """Add events; return how many values are not numbers, which end the value before, or of one series too many."""
    unread = 0
    for event, at in zip(events, at_ns.tolist(), strict=True):
        given: dict[str, float | None] = {"": None}
        with suppress(msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            given = _VALUES.decode(event.args)
        for key, value in given.items() if event.pid != OWN_PROCESS else ():  # that of an annotated copy
            of, number = (str(event.pid), str(event.name), key), nan if value is None else value
            number = number if abs(number) < MOST_VALUE else nan
            if is_read := of in series or len(series) < MOST_SERIES:
                times, values = series.setdefault(of, (array("q"), array("d")))
                times.append(at)
                values.append(number)
            unread += not is_read or number != number
    return unread


@dataclass(frozen=True, slots=True)
class CounterSeries:
    """One value of a counter; means are by time."""

    name: str
    device: int | None
    samples: int
    least: float
    mean: float
    most: float
    busy_mean: float | None  # of samples in which the device was busy; None without one
    idle_mean: float | None  # of samples in gaps of 30 us or more
    fall: tuple[float, float, float] | None  # of the clock while busy: mean below its highest; the largest, from and to
    binned: tuple[float | None, ...]  # the means in equal parts of the recording


def series_of(
    counters: Counters, extent: tuple[int, int], devices: Sequence[OneDevice], gaps: Sequence[Any]
) -> tuple[CounterSeries, ...]:
    """Return what each counter says; one whose device is not known belongs to the only one."""
    found = []
    for (pid, name, key), (unordered_ns, values) in counters.items():
        order = np.argsort(unordered_ns, kind="stable")
        at_ns, values = unordered_ns[order], values[order]
        named = _DEVICE.search(pid) or _DEVICE.search(name)
        alone = devices[0].index if len(devices) == 1 else None
        index = int(named[1]) if named else next((one.index for one in devices if str(one.index) == pid), alone)
        busy = next((one.device.busy for one in devices if one.index == index), Intervals(at_ns[:0], at_ns[:0]))
        idle = Intervals.of(*bounds_of([gap for gap in gaps if gap.device == index]))
        edges_ns = np.linspace(extent[0] - at_ns[0], extent[1] - at_ns[0], BINS + 1)
        if not np.isnan(values).all():
            found.append(_one(f"{name} {key}".strip(), index, at_ns, values, edges_ns, (busy, idle)))
    return tuple(found)


def _one(
    name: str, device: int | None, at_ns: Ints, value: Floats, edges_ns: Floats, busy_and_idle: Sequence[Intervals]
) -> CounterSeries:
    # A value holds until the next, which may be none; how long the last one did is not known.
    known, held = value[~np.isnan(value)], np.nan_to_num(value[:-1])
    held_ns = np.where(np.isnan(value[:-1]), 0, np.diff(at_ns))

    def mean_of(which: Bools) -> float | None:
        return float(np.average(held[which], weights=held_ns[which])) if held_ns[which].any() else None

    busy, idle = (each.within(at_ns[:-1], at_ns[1:]) > MOSTLY * np.diff(at_ns) for each in busy_and_idle)
    mean = mean_of(held_ns > 0)
    sums = (np.append(0.0, np.cumsum(of)) for of in (held * held_ns, held_ns))
    parts, parts_ns = (np.diff(np.interp(edges_ns, (at_ns - at_ns[0]).astype(np.float64), of)) for of in sums)
    binned = tuple(part / ns if ns > 0 else None for part, ns in zip(parts.tolist(), parts_ns.tolist(), strict=True))
    fall = _fall(held, held_ns, busy & (held_ns > 0)) if _CLOCK.search(name) else None
    mean = float(known.mean()) if mean is None else mean
    figures = len(known), float(known.min()), mean, float(known.max()), mean_of(busy), mean_of(idle)
    return CounterSeries(name, device, *figures, fall, binned)


def _fall(held: Floats, held_ns: Ints, busy: Bools) -> tuple[float, float, float] | None:
    """Return ``CounterSeries.fall``; None of few samples. The first of a busy device does not count: it rises."""
    which = busy & np.append(False, busy[:-1])
    if which.sum() < LEAST_CLOCKS:
        return None
    clocks = held[which]
    highest = np.maximum(np.maximum.accumulate(clocks), 1)
    falls = 1 - clocks / highest
    largest = int(falls.argmax())
    return float(np.average(falls, weights=held_ns[which])), float(highest[largest]), float(clocks[largest])


def charts_of(
    series: Sequence[CounterSeries], devices: Sequence[OneDevice], extent: tuple[int, int]
) -> list[dict[str, Any]]:
    """Return what the page draws: when each device was busy, and a chart for each counter; nothing without one."""
    edges_ns = np.linspace(*extent, BINS + 1).astype(np.int64)
    at_ms, length_ns = ((edges_ns[:-1] - extent[0]) / 1e6).round(3).tolist(), np.maximum(1, np.diff(edges_ns))
    parts = {one.index: one.device.busy.within(edges_ns[:-1], edges_ns[1:]) / length_ns for one in devices}
    charts: dict[str, dict[int | None, Iterable[float | None]]] = {
        "Device busy (%)": {index: (100 * part).tolist() for index, part in parts.items()}
    }
    for each in series:
        charts.setdefault(each.name, {})[each.device] = each.binned
    return [
        {
            "title": name,
            "unit": "".join(_UNIT.findall(name)),
            "x": "ms since the begin",
            "s": at_ms,
            "names": ["" if device is None else f"device {device}" for device in lines],
            "values": [[None if part is None else float(f"{part:.4g}") for part in line] for line in lines.values()],
        }
        for name, lines in charts.items()
        if series
    ]
