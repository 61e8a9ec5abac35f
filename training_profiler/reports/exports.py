"""A run for other viewers: its time by lines as collapsed stacks and for speedscope, its timeline as a Chrome trace.

Perfetto opens the trace: ranks are processes, and the machine's levels are counters.
"""

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from training_profiler.base.text import printable_data
from training_profiler.base.units import BYTES_PER_MIB, NS_PER_MS, NS_PER_US
from training_profiler.model.series import RankSeries, Stretch
from training_profiler.model.snapshot import AFTER_TRAINING, BETWEEN, OUTSIDE_STEPS, WorkerStats
from training_profiler.reports.sections import WITHOUT_START, table_label

NOT_YOURS: Final = "(no line of your code)"
MOST_DEPTH: Final = 20  # sections in each other
SPEEDSCOPE_SCHEMA: Final = "https://www.speedscope.app/file-format-schema.json"

Stack = tuple[str, ...]


def stacks_of(series: RankSeries) -> Counter[Stack]:
    """Return the time of each stack in us, outermost first: sections, the line of the user's code, what it called.

    What lies before or after the training is inside a frame that says so.
    """
    stacks: Counter[Stack] = Counter()
    for name, lines in series.lines_ns.items():
        chain = [name]  # a section and those around it; circles are only in damaged journals
        while (parent := series.parents.get(chain[-1])) and parent not in chain and len(chain) < MOST_DEPTH:
            chain.append(parent)
        sections = [table_label(each, series.lines_ns, WITHOUT_START) for each in reversed(chain)]
        for line, ns in lines.items():
            frames = [NOT_YOURS] if line is None else []
            if line is not None and line.file:
                frames = [f"{line.file}:{line.line} {line.function}", *_inside(line.inside)]
                frames += [line.phase] if line.phase and line.phase not in line.inside else []
                frames += [f"{line.waits_in}() waits for the device"] if line.waits_in else []
            after_us = round(ns * series.after_parts.get(name, 0.0) / NS_PER_US)
            if us := round(ns / NS_PER_US) - after_us:
                stacks[(*sections, *frames)] += us
            if after_us:
                inside = [] if name == OUTSIDE_STEPS else sections
                stacks[(WITHOUT_START[AFTER_TRAINING], *inside, *frames)] += after_us
    return stacks


def worker_stacks(workers: WorkerStats) -> Counter[Stack]:
    """Return the samples of what the workers of a loader did: the phase, the line, what it called."""
    stacks: Counter[Stack] = Counter()
    for line in workers.lines:
        stacks[(line.phase, f"{line.place} {line.function}", *_inside(line.inside))] += line.samples
    return stacks


def _inside(calls: str) -> list[str]:
    return calls.split(BETWEEN) if calls else []


def collapsed(ranks: Sequence[RankSeries]) -> str:
    """Return a line per stack and its us: "a;b;c 12000". With several ranks, the rank is the outermost frame."""
    lines = []
    for series in ranks:
        own = (f"rank {series.rank}",) if len(ranks) > 1 else ()
        for stack, us in sorted(stacks_of(series).items()):
            frames = ";".join(frame.replace(";", ",") for frame in (*own, *stack))
            lines.append(f"{frames} {us}\n")
    return "".join(lines)


def speedscope(ranks: Sequence[RankSeries], name: str) -> str:
    """Return a document for speedscope, a profile per rank. Stacks have no order in time, so they are sorted."""
    numbers: dict[str, int] = {}
    profiles = []
    for series in ranks:
        stacks = sorted(stacks_of(series).items())
        weights = [us for _, us in stacks]
        profiles.append(
            {
                "type": "sampled",
                "name": f"rank {series.rank}",
                "unit": "microseconds",
                "startValue": 0,
                "endValue": sum(weights),
                "samples": [[numbers.setdefault(frame, len(numbers)) for frame in stack] for stack, _ in stacks],
                "weights": weights,
            }
        )
    return _document(
        {
            "$schema": SPEEDSCOPE_SCHEMA,
            "name": name,
            "exporter": "training-profiler",
            "activeProfileIndex": 0,
            "shared": {"frames": [{"name": frame} for frame in numbers]},
            "profiles": profiles,
        }
    )


def _document(data: dict[str, Any]) -> str:
    return json.dumps(printable_data(data), allow_nan=False, separators=(",", ":")) + "\n"


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
        anchor_ns = stretch.loop_begin_ns if stretch.epoch_begin_ns is None else stretch.epoch_begin_ns
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


LANES: Final = {1: "steps", 2: "epochs", 3: "between two lines of the journal", 4: "recorded steps"}  # of a rank
STEPS, EPOCHS, STRETCHES, RECORDED = LANES
THREADS: Final = 10  # the first lane of a thread
SECTIONS: Final = "sections, mean ms in a step"
NOTE: Final = (
    "The journal has the spans of some steps: the first, slow ones and the last, on the lanes of their threads. Of all "
    "steps it has duration and order, and each section's time by blocks of steps, which are counters. The lane of all "
    "steps has each where it can have begun first: see begins_later_by_at_most_ms. Steps whose position is not known "
    "to within their duration are only in the slices of the journal. Ranks are placed by the wall clocks of their "
    "machines."
)
Event = dict[str, Any]


def timeline_trace(ranks: Sequence[RankSeries]) -> str:
    """Return the trace as JSON."""
    first_ns = min((series.wall_ns for series in ranks if series.wall_ns), default=0)
    events: list[Event] = []
    for series in ranks:
        # A wall clock that is unknown leaves a rank at the begin.
        shift_ns = (series.wall_ns - first_ns if series.wall_ns else 0) - series.begin_ns
        events += _rank_events(series, shift_ns)
    return _document({"displayTimeUnit": "ms", "traceEvents": events, "otherData": {"note": NOTE}})


def _rank_events(series: RankSeries, shift_ns: int) -> Iterator[Event]:
    pid = series.rank

    def meta(name: str, args: Mapping[str, Any], **lane: int) -> Event:
        return {"ph": "M", "name": name, "pid": pid, **lane, "args": args}

    def slice_of(name: str, lane: int, begin_ns: int, duration_ns: int, args: Mapping[str, Any]) -> Event:
        times = {"ts": (begin_ns + shift_ns) / NS_PER_US, "dur": duration_ns / NS_PER_US}
        return {"ph": "X", "name": name, "pid": pid, "tid": lane, **times, "args": args}

    yield meta("process_name", {"name": f"rank {pid} ({series.host})" if series.host else f"rank {pid}"})
    yield meta("process_sort_index", {"sort_index": pid})
    for lane, title in LANES.items():
        yield meta("thread_name", {"name": title}, tid=lane)
    for step in placed_steps(series):
        later = {"begins_later_by_at_most_ms": step.later_by_ns / NS_PER_MS}
        yield slice_of(f"step {step.number}", STEPS, step.begin_ns, step.duration_ns, later)
    last_ns = series.stretches[-1].end_ns if series.stretches else series.begin_ns
    for epoch in series.epochs:
        duration_ns = (last_ns if epoch.end_ns is None else epoch.end_ns) - epoch.begin_ns
        ended = {"is_complete": epoch.end_ns is not None}
        yield slice_of(f"epoch {epoch.number}", EPOCHS, epoch.begin_ns, duration_ns, ended)
    for stretch in series.stretches:
        yield from _stretch_events(stretch, pid, shift_ns)
    threads = dict.fromkeys(lane.thread for recorded in series.recorded for lane in recorded.lanes)
    thread_ids = {thread: number for number, thread in enumerate(threads, start=THREADS)}
    for thread, number in thread_ids.items():
        yield meta("thread_name", {"name": thread}, tid=number)
    for recorded in series.recorded:
        yield slice_of(
            f"step {recorded.number}",
            RECORDED,
            recorded.begin_ns,
            recorded.end_ns - recorded.begin_ns,
            {"why": recorded.why, "step_ms": recorded.duration_ns / NS_PER_MS, "spans_left_out": recorded.left_out},
        )
        of_step = {"step": recorded.number}
        for each in recorded.lanes:
            for section, *ends_us in each.by_begin():
                begin_ns, end_ns = (recorded.begin_ns + us * NS_PER_US for us in ends_us)
                yield slice_of(section, thread_ids[each.thread], begin_ns, end_ns - begin_ns, of_step)


def _stretch_events(stretch: Stretch, pid: int, shift_ns: int) -> Iterator[Event]:
    begin_us, end_us = (stretch.begin_ns + shift_ns) / NS_PER_US, (stretch.end_ns + shift_ns) / NS_PER_US
    count = len(stretch.steps_ns)
    sums_ms = {name: sum(column) / NS_PER_MS for name, column in stretch.blocks_ns.items()}
    first, last = stretch.first_step + 1, stretch.first_step + count
    yield {
        "ph": "X",
        "name": "no step ended" if not count else f"step {first}" if count == 1 else f"steps {first} to {last}",
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
    counters = {SECTIONS: {name: total / count for name, total in sums_ms.items()}} if count else {}
    for quantity, value in stretch.levels.items():
        is_memory = quantity.endswith("_bytes")
        name = f"{quantity} (MiB)" if is_memory else quantity
        counters[name] = {"mean": value / BYTES_PER_MIB if is_memory else value}
    for name, args in counters.items():
        yield {"ph": "C", "name": name, "pid": pid, "ts": begin_us, "args": args}
