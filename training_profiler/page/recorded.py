"""The data behind the timeline of recorded steps: lanes of threads, with a row for each depth of nesting."""

from collections.abc import Sequence
from typing import Any, Final

from training_profiler.aggregation.step_spans import SLOW
from training_profiler.base.units import NS_PER_MS, NS_PER_US
from training_profiler.device.device_lanes import LANE
from training_profiler.reports.labels import bar_label
from training_profiler.snapshot.series import Lane, RankSeries, Span, StepLanes

MOST_SPANS: Final = 6_000  # some 100 kB of the page


def recorded_data(series: RankSeries) -> dict[str, Any]:
    """Return the recorded steps of a rank, by number. Beyond the limit, the slow steps with the shortest times go."""
    order = sorted(series.recorded, key=lambda step: (step.why == SLOW, -step.duration_ns))
    chosen, spans = [], 0
    for step in order:
        spans += sum(len(lane.spans) for lane in step.lanes)
        if spans > MOST_SPANS:
            break
        chosen.append(step)
    chosen.sort(key=lambda step: step.number)
    names = list(dict.fromkeys(span.section for step in chosen for lane in step.lanes for span in lane.spans))
    place = {name: at for at, name in enumerate(names)}
    return {
        "names": [bar_label(name, names) for name in names],
        "steps": [_step(step, place) for step in chosen],
        "left_out": len(order) - len(chosen),
    }


def has_device(step: StepLanes) -> bool:
    """Return whether the step was seen on a device."""
    return any(lane.thread.startswith(LANE) for lane in step.lanes)


def _step(step: StepLanes, place: dict[str, int]) -> dict[str, Any]:
    # A device behind the host does its part of the step later.
    on_device_ns = [span.end_ns for lane in step.lanes if lane.thread.startswith(LANE) for span in lane.spans]
    return {
        "step": step.number,
        "why": step.why,
        "ms": round(step.duration_ns / NS_PER_MS, 3),
        "us": (step.end_ns - step.begin_ns) // NS_PER_US,
        "shown_us": (max([step.end_ns, *on_device_ns]) - step.begin_ns) // NS_PER_US,
        "left_out": step.left_out,
        "lanes": [{"thread": lane.thread, "spans": _spans(step, lane, place)} for lane in step.lanes],
    }


def _spans(step: StepLanes, lane: Lane, place: dict[str, int]) -> list[list[int]]:
    """Return (name, begin in us since the begin of the step, duration in us, row) of each span."""
    return [
        [
            place[span.section],
            (span.begin_ns - step.begin_ns) // NS_PER_US,
            (span.end_ns - span.begin_ns) // NS_PER_US,
            row,
        ]
        for span, row in rows_of(lane.spans)
    ]


def rows_of(spans: Sequence[Span]) -> list[tuple[Span, int]]:
    """Return spans by their begins, each with the first row that is free: of nested spans that is their depth."""
    ends_ns: list[int] = []  # of the last span in each row
    placed = []
    for span in sorted(spans, key=lambda span: (span.begin_ns, -span.end_ns)):
        row = next((row for row, end_ns in enumerate(ends_ns) if end_ns <= span.begin_ns), len(ends_ns))
        ends_ns[row : row + 1] = [span.end_ns]
        placed.append((span, row))
    return placed
