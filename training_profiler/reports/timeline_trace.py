"""A run's timeline as a Chrome trace, which Perfetto opens: ranks as processes, and counters for the machine."""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from training_profiler.base.text import printable_data
from training_profiler.base.units import BYTES_PER_MIB, NS_PER_MS, NS_PER_US
from training_profiler.snapshot.series import RankSeries, StepLanes, Stretch


class PlacedStep(NamedTuple):
    """A step whose position is known to within its own duration."""

    number: int  # counted from 1
    begin_ns: int  # the earliest possible
    duration_ns: int
    later_by_ns: int  # it began at most this much later


def placed_steps(series: RankSeries) -> list[PlacedStep]:
    """Return the steps whose position is known.

    All steps of a stretch ended in it, steps follow each other, and a first step begins with its epoch or its loop.
    Between two steps there is only time outside steps, of which each stretch has the sum.
    """
    placed: list[PlacedStep] = []
    least_ns = most_ns = None
    for stretch in series.stretches:
        anchor_ns = _anchor(stretch)
        if anchor_ns is not None:
            least_ns = most_ns = anchor_ns
        if not len(stretch.steps_ns):
            most_ns = None if most_ns is None else most_ns + stretch.outside_ns
            continue
        total_ns = sum(stretch.steps_ns)
        low_ns = stretch.begin_ns - stretch.steps_ns[0]
        high_ns = stretch.end_ns - total_ns
        low_ns = low_ns if least_ns is None else max(least_ns, low_ns)
        high_ns = high_ns if most_ns is None else min(high_ns, most_ns + stretch.outside_ns)
        if high_ns < low_ns:  # the journal contradicts itself, or a part of it is missing
            least_ns = most_ns = None
            continue
        at_ns = low_ns
        for number, duration_ns in enumerate(stretch.steps_ns, start=stretch.first_step + 1):
            if high_ns - low_ns <= duration_ns:
                placed.append(PlacedStep(number, at_ns, duration_ns, high_ns - low_ns))
            at_ns += duration_ns
        least_ns, most_ns = at_ns, high_ns + total_ns
    return placed


def _anchor(stretch: Stretch) -> int | None:
    if stretch.epoch_begin_ns is not None:
        return stretch.epoch_begin_ns
    return stretch.loop_begin_ns


STEPS, EPOCHS, STRETCHES, RECORDED = 1, 2, 3, 4  # lanes of a rank
LANES: Final = {
    STEPS: "steps",
    EPOCHS: "epochs",
    STRETCHES: "between two lines of the journal",
    RECORDED: "recorded steps",
}
THREADS: Final = 10  # the first lane of a thread
SECTIONS: Final = "sections, mean ms in a step"
NOTE: Final = (
    "The journal has the spans of some steps: the first, slow ones and the last, on the lanes of their threads. Of all "
    "steps it has duration and order, and each section's time by blocks of steps, which are counters. The lane of all "
    "steps has each where it can have begun first: see begins_later_by_at_most_ms. Steps whose position is not known "
    "to within their duration are only in the slices of the journal. Ranks are placed by the wall clocks of their "
    "machines."
)


def timeline_trace(ranks: Sequence[RankSeries]) -> str:
    """Return the trace as JSON."""
    first_ns = min((series.wall_ns for series in ranks if series.wall_ns), default=0)
    events: list[dict[str, Any]] = []
    for series in ranks:
        # A wall clock that is unknown leaves a rank at the begin.
        shift_ns = (series.wall_ns - first_ns if series.wall_ns else 0) - series.begin_ns
        events += _rank_events(series, shift_ns)
    data = {"displayTimeUnit": "ms", "traceEvents": events, "otherData": {"note": NOTE}}
    return json.dumps(printable_data(data), allow_nan=False, separators=(",", ":")) + "\n"


def _rank_events(series: RankSeries, shift_ns: int) -> Iterator[dict[str, Any]]:
    pid = series.rank
    name = f"rank {series.rank} ({series.host})" if series.host else f"rank {series.rank}"
    yield {"ph": "M", "name": "process_name", "pid": pid, "args": {"name": name}}
    yield {"ph": "M", "name": "process_sort_index", "pid": pid, "args": {"sort_index": series.rank}}
    for lane, title in LANES.items():
        yield {"ph": "M", "name": "thread_name", "pid": pid, "tid": lane, "args": {"name": title}}

    def at(ns: int) -> float:
        return (ns + shift_ns) / NS_PER_US

    for step in placed_steps(series):
        yield {
            "ph": "X",
            "name": f"step {step.number}",
            "pid": pid,
            "tid": STEPS,
            "ts": at(step.begin_ns),
            "dur": step.duration_ns / NS_PER_US,
            "args": {"begins_later_by_at_most_ms": step.later_by_ns / NS_PER_MS},
        }
    last_ns = series.stretches[-1].end_ns if series.stretches else series.begin_ns
    for epoch in series.epochs:
        end_ns = last_ns if epoch.end_ns is None else epoch.end_ns
        yield {
            "ph": "X",
            "name": f"epoch {epoch.number}",
            "pid": pid,
            "tid": EPOCHS,
            "ts": at(epoch.begin_ns),
            "dur": (end_ns - epoch.begin_ns) / NS_PER_US,
            "args": {"is_complete": epoch.end_ns is not None},
        }
    for stretch in series.stretches:
        begin_us, end_us = at(stretch.begin_ns), at(stretch.end_ns)
        yield from _stretch_events(stretch, pid, begin_us, end_us)
    threads = dict.fromkeys(lane.thread for recorded in series.recorded for lane in recorded.lanes)
    thread_ids = {thread: number for number, thread in enumerate(threads, start=THREADS)}
    for thread, number in thread_ids.items():
        yield {"ph": "M", "name": "thread_name", "pid": pid, "tid": number, "args": {"name": thread}}
    for recorded in series.recorded:
        for event in _recorded_events(recorded, thread_ids):
            yield {"ph": "X", "pid": pid, **event, "ts": at(event["ts"]), "dur": event["dur"] / NS_PER_US}


def _recorded_events(step: StepLanes, thread_ids: Mapping[str, int]) -> Iterator[dict[str, Any]]:
    """Yield slices with times in ns, in each lane by their begins and the outermost first."""
    yield {
        "name": f"step {step.number}",
        "tid": RECORDED,
        "ts": step.begin_ns,
        "dur": step.end_ns - step.begin_ns,
        "args": {"why": step.why, "step_ms": step.duration_ns / NS_PER_MS, "spans_left_out": step.left_out},
    }
    for lane in step.lanes:
        for span in sorted(lane.spans, key=lambda span: (span.begin_ns, -span.end_ns)):
            yield {
                "name": span.section,
                "tid": thread_ids[lane.thread],
                "ts": span.begin_ns,
                "dur": span.end_ns - span.begin_ns,
                "args": {"step": step.number},
            }


def _stretch_events(stretch: Stretch, pid: int, begin_us: float, end_us: float) -> Iterator[dict[str, Any]]:
    count = len(stretch.steps_ns)
    sums_ms = {name: sum(column) / NS_PER_MS for name, column in stretch.blocks_ns.items()}
    first, last = stretch.first_step + 1, stretch.first_step + count
    title = "no step ended" if not count else f"step {first}" if count == 1 else f"steps {first} to {last}"
    yield {
        "ph": "X",
        "name": title,
        "pid": pid,
        "tid": STRETCHES,
        "ts": begin_us,
        "dur": end_us - begin_us,
        "args": {
            "steps": count,
            "step_ms": sum(stretch.steps_ns) / count / NS_PER_MS if count else None,
            "sections_ms": sums_ms,
            "outside_steps_ms": stretch.outside_ns / NS_PER_MS,
        },
    }
    if count:
        means_ms = {name: total / count for name, total in sums_ms.items()}
        yield {"ph": "C", "name": SECTIONS, "pid": pid, "ts": begin_us, "args": means_ms}
    for quantity, value in stretch.levels.items():
        name, shown = (f"{quantity} (MiB)", value / BYTES_PER_MIB) if quantity.endswith("_bytes") else (quantity, value)
        yield {"ph": "C", "name": name, "pid": pid, "ts": begin_us, "args": {"mean": shown}}
