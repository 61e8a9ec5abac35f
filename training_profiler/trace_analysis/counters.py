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


class CounterSamples:
    """Collects the samples of each series: of a counter, or of one of its values."""

    def __init__(self) -> None:
        self._series: dict[tuple[str, str, str], tuple[array[int], array[float]]] = {}
        self.unread = 0  # no numbers, or of one series too many

    def add(self, events: Iterable[CounterEvent], at_ns: Ints) -> None:
        """Add events; what is not a number ends the value before it."""
        for event, at in zip(events, at_ns.tolist(), strict=True):
            given: dict[str, float | None] = {"": None}
            with suppress(msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                given = _VALUES.decode(event.args)
            for key, value in given.items():
                of = str(event.pid), str(event.name), key
                is_number = value is not None and abs(value) < MOST_VALUE
                if of[0] != OWN_PROCESS and (of in self._series or len(self._series) < MOST_SERIES):
                    times, values = self._series.setdefault(of, (array("q"), array("d")))
                    times.append(at)
                    values.append(value if is_number and value is not None else nan)
                else:
                    is_number = of[0] == OWN_PROCESS  # of an annotated copy
                self.unread += not is_number

    def columns(self) -> Counters:
        """Return times and values of each series, in order of time."""
        found = {}
        for key, (times, values) in self._series.items():
            order = np.argsort(at_ns := np.array(times, np.int64), kind="stable")
            found[key] = at_ns[order], np.array(values, np.float64)[order]
        return found


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
    # Of the clock: how far it is below its highest so far while busy, in the mean, and the largest fall, from and to.
    fall: tuple[float, float, float] | None
    binned: tuple[float | None, ...]  # the means in equal parts of the recording


def series_of(
    counters: Counters, extent: tuple[int, int], devices: Sequence[OneDevice], gaps: Sequence[Any]
) -> tuple[CounterSeries, ...]:
    """Return what each counter says; one whose device is not known belongs to the only one."""
    found = []
    for (pid, name, key), (at_ns, values) in counters.items():
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
    return CounterSeries(
        name=name,
        device=device,
        samples=len(known),
        least=float(known.min()),
        mean=float(known.mean()) if mean is None else mean,
        most=float(known.max()),
        busy_mean=mean_of(busy),
        idle_mean=mean_of(idle),
        fall=_fall(held, held_ns, busy & (held_ns > 0)) if _CLOCK.search(name) else None,
        binned=tuple(part / ns if ns > 0 else None for part, ns in zip(parts.tolist(), parts_ns.tolist(), strict=True)),
    )


def _fall(held: Floats, held_ns: Ints, busy: Bools) -> tuple[float, float, float] | None:
    """Return what ``CounterSeries.fall`` is; None if too few samples are of a busy device.

    The first of those says nothing, as the clock rises when work begins; and one that rises has not fallen.
    """
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
    begins_ns, ends_ns = edges_ns[:-1], edges_ns[1:]
    charts: dict[str, dict[int | None, Iterable[float | None]]] = {"Device busy (%)": {}}
    for one in devices:
        busy = one.device.busy.within(begins_ns, ends_ns) / np.maximum(1, ends_ns - begins_ns)
        charts["Device busy (%)"][one.index] = (100 * busy).tolist()
    for each in series:
        charts.setdefault(each.name, {})[each.device] = each.binned
    return [
        {
            "title": name,
            "unit": unit[1] if (unit := _UNIT.search(name)) else "%" if ".pct_of_peak" in name else "",
            "x": "ms since the begin",
            "s": ((begins_ns - extent[0]) / 1e6).round(3).tolist(),
            "names": ["" if device is None else f"device {device}" for device in lines],
            "values": [[None if part is None else float(f"{part:.4g}") for part in line] for line in lines.values()],
        }
        for name, lines in charts.items()
        if series
    ]
