"""The numbers behind the charts, small enough for a page however long the run was."""

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate, chain
from typing import Any, Final, NamedTuple

from training_profiler.base.units import BYTES_PER_GIB, NS_PER_MS, NS_PER_S, NS_PER_US
from training_profiler.model.series import DEVICE_LANE, SLOW, Lane, RankSeries, StepLanes
from training_profiler.model.snapshot import StepStats
from training_profiler.reports.sections import table_label

MOST_STEPS: Final = 20_000  # drawn one by one; of longer runs groups of steps
MOST_BLOCKS: Final = 4_000
MOST_SECTIONS: Final = 11  # as many colors can be distinguished
MOST_LONGEST: Final = 12
MOST_MOMENTS: Final = 1_000  # of the machine
MOST_RANKS, MOST_COLUMNS, MOST_METRICS = 256, 100, 5
MOST_BARS: Final = 60
UNEVEN: Final = 8  # times the step that a quarter is shorter than: a linear scale would show a flat line
REST: Final = "(smaller sections)"
DIGITS: Final = 4

# Quantities of the machine in charts of one unit each.
_CPU: Final = {
    "cpu_host": "host, all CPUs",
    "cpu_wait": "training waits for a CPU",
    "cpu_throttled": "stopped by the quota",
    "cpu_steal": "taken by the hypervisor",
    "memory_stall": "all programs wait for memory",
}
_RAM: Final = {"ram_process_bytes": "this process", "ram_container_bytes": "container", "ram_host_bytes": "host"}


class ChartBlock(NamedTuple):
    """Consecutive steps with the time of each section in all of them together."""

    first: int  # counted from 1
    steps: int
    step_ns: int
    sections_ns: Mapping[str, int]


def chart_data(ranks: Sequence[RankSeries], step: StepStats | None) -> dict[str, Any]:
    """Return what the charts draw; the first rank's, but for the heat map."""
    if not ranks:
        return {}
    series = ranks[0]
    blocks = list(blocks_of(series))
    names = _largest(blocks)
    together = max(1, math.ceil(len(blocks) / MOST_BLOCKS))
    merged = blocks if together == 1 else [_one(blocks[at : at + together]) for at in range(0, len(blocks), together)]
    return {
        "steps": _steps(series, step),
        "sections": [table_label(name, names) for name in names],
        "blocks": {
            "first": [block.first for block in merged],
            "steps": [block.steps for block in merged],
            "ms": [list(column) for column in zip(*(_means(block, names) for block in merged), strict=True)],
        },
        "longest": _longest(series, blocks, names),
        "histogram": _histogram(series),
        "recorded": recorded_data(series),
        "machine": _machine(series),
        "ranks": _ranks(ranks),
    }


def blocks_of(series: RankSeries) -> Iterator[ChartBlock]:
    """Yield the blocks of a rank, as the journal has them."""
    for stretch in series.stretches:
        count, size = len(stretch.steps_ns), stretch.steps_a_block
        for at, begin in enumerate(range(0, count, size)):
            steps_ns = stretch.steps_ns[begin : begin + size]
            sections = {name: column[at] for name, column in stretch.blocks_ns.items() if at < len(column)}
            yield ChartBlock(stretch.first_step + begin + 1, len(steps_ns), sum(steps_ns), sections)


def _rounded(value: float) -> float:
    return float(f"{value:.{DIGITS}g}")


def _ms(ns: float) -> float:
    return _rounded(ns / NS_PER_MS)


def _steps(series: RankSeries, step: StepStats | None) -> dict[str, Any]:
    durations = [ns for stretch in series.stretches for ns in stretch.steps_ns]
    group = max(1, math.ceil(len(durations) / MOST_STEPS))
    groups = [durations[at : at + group] for at in range(0, len(durations), group)]
    slowed = {stretch.first_step + 1 + at for stretch in series.stretches for at in stretch.slowed}
    return {
        "first": series.stretches[0].first_step + 1 if series.stretches else 1,
        "group": group,
        "count": len(durations),
        "ms": [_ms(sum(each) / len(each)) for each in groups],
        "max": [_ms(max(each)) for each in groups] if group > 1 else None,
        "warmup": step.warmup_count if step else 0,
        "median": _ms(step.median_s * NS_PER_S) if step else None,
        "slowed": sorted(slowed)[:MOST_STEPS],
        "uneven": _is_uneven(sorted(durations[step.warmup_count if step else 0 :])),
    }


def _one(blocks: Iterable[ChartBlock]) -> ChartBlock:
    firsts, steps, step_ns, of_sections = zip(*blocks, strict=True)
    sections = Counter[str]()
    for each in of_sections:
        sections.update(each)
    return ChartBlock(firsts[0], sum(steps), sum(step_ns), sections)


def _largest(blocks: Sequence[ChartBlock]) -> list[str]:
    sums = _one(blocks).sections_ns if blocks else {}
    names = sorted((name for name in sums if sums[name]), key=lambda name: (-sums[name], name))
    return names if len(names) <= MOST_SECTIONS + 1 else [*names[:MOST_SECTIONS], REST]


def _sums(block: ChartBlock, names: Sequence[str]) -> list[int]:
    sums = [block.sections_ns.get(name, 0) for name in names]
    if names[-1:] == [REST]:
        sums[-1] = sum(ns for name, ns in block.sections_ns.items() if name not in names)
    return sums


def _means(block: ChartBlock, names: Sequence[str]) -> list[float]:
    return [_ms(ns / block.steps) for ns in _sums(block, names)]


def _longest(series: RankSeries, blocks: Sequence[ChartBlock], names: Sequence[str]) -> list[dict[str, Any]]:
    """Return the longest steps, each with the section that took the most above its mean of the run in its block."""
    steps = [
        (-ns, number)
        for stretch in series.stretches
        for number, ns in enumerate(stretch.steps_ns, start=stretch.first_step + 1)
    ]
    columns = zip(*(_sums(block, names) for block in blocks), strict=True)
    means = [sum(column) / max(1, series.steps) for column in columns]
    longest = []
    for minus_ns, number in sorted(steps)[:MOST_LONGEST]:
        block = next((block for block in blocks if 0 <= number - block.first < block.steps), None)
        if block is None:
            continue
        above = [ns - mean * block.steps for ns, mean in zip(_sums(block, names), means, strict=True)]
        most_ns, at = max(((ns, at) for at, ns in enumerate(above)), default=(0.0, 0))
        longest.append(
            {
                "step": number,
                "ms": _ms(-minus_ns),
                "of": block.steps,
                "first": block.first,
                "sections": _means(block, names),
                "excess": (at, _ms(most_ns)) if most_ns > 0 else None,
            }
        )
    return longest


def _is_uneven(ordered_ns: Sequence[int]) -> bool:
    """Return whether steps, from the shortest on, are of two kinds, or spread as far."""
    return bool(ordered_ns) and _most(ordered_ns) > UNEVEN * ordered_ns[len(ordered_ns) // 4]


def _most(ordered_ns: Sequence[int]) -> int:
    """Return the 99th percentile: the longest 1 % would leave the others one bar."""
    return ordered_ns[min(len(ordered_ns) - 1, math.ceil(0.99 * len(ordered_ns)))]


def _histogram(series: RankSeries) -> dict[str, Any] | None:
    steps_ns = sorted(ns for stretch in series.stretches for ns in stretch.steps_ns if ns)
    if len(steps_ns) < 2 or steps_ns[-1] == steps_ns[0]:
        return None
    is_log = _is_uneven(steps_ns)
    scaled, length = (math.log, math.exp) if is_log else (float, float)
    low, high = scaled(steps_ns[0]), scaled(steps_ns[-1] if is_log else _most(steps_ns))
    bars = min(MOST_BARS, max(5, math.ceil(math.sqrt(len(steps_ns)))))
    width = (high - low) / bars or 1.0
    places = (int((scaled(ns) - low) / width) for ns in steps_ns if scaled(ns) <= high)
    counts = Counter(min(at, bars - 1) for at in places)
    return {
        "ms": [_ms(length(low + (at + 0.5) * width)) for at in range(bars)],
        "counts": [counts[at] for at in range(bars)],
        "beyond": len(steps_ns) - counts.total(),
        "log": is_log,
    }


def _machine(series: RankSeries) -> list[dict[str, Any]]:
    stretches = [stretch for stretch in series.stretches if stretch.levels]
    stretches = stretches[:: max(1, math.ceil(len(stretches) / MOST_MOMENTS))]
    at_s = [_rounded((stretch.end_ns - series.begin_ns) / NS_PER_S) for stretch in stretches]
    known = sorted({name for stretch in stretches for name in stretch.levels})
    gpus = [name for name in known if name.startswith("gpu") and name.endswith(".utilization")]
    active = [name for name in known if name.startswith("gpu") and name.endswith("_active")]
    memory = [name for name in known if name.startswith("gpu") and name.endswith(".used_bytes")]
    memory = memory or [name for name in known if name.startswith("gpu") and name.endswith(".reserved_bytes")]
    charts = (
        ("CPUs kept busy by this process", "CPUs", {"cpu_process": "this process"}, 1.0),
        ("Shares of the time", "%", _CPU, 0.01),
        ("Memory", "GiB", _RAM, BYTES_PER_GIB),
        ("Accelerators busy", "%", {name: name.partition(".")[0] for name in gpus}, 0.01),
        (
            "Active parts of accelerators",
            "%",
            {name: name.replace(".", " ").replace("_", " ") for name in active},
            0.01,
        ),
        ("Accelerator memory", "GiB", {name: name.partition(".")[0] for name in memory}, BYTES_PER_GIB),
    )
    return [
        {
            "title": title,
            "unit": unit,
            "s": at_s,
            "names": [label for name, label in labels.items() if name in known],
            "values": [
                [None if (value := each.levels.get(name)) is None else _rounded(value / scale) for each in stretches]
                for name in labels
                if name in known
            ],
        }
        for title, unit, labels, scale in charts
        if at_s and any(name in known for name in labels)
    ]


def _ranks(ranks: Sequence[RankSeries]) -> dict[str, Any] | None:
    """Return step times and the largest sections of every rank, by columns of steps; None of a single rank."""
    if len(ranks) < 2:
        return None
    of_ranks = [list(blocks_of(series)) for series in ranks[:MOST_RANKS]]
    last = max((block.first + block.steps - 1 for block in chain(*of_ranks)), default=0)
    if not last:
        return None
    coarsest = max(block.steps for block in chain(*of_ranks))
    width = max(coarsest, math.ceil(last / MOST_COLUMNS))
    names = [name for name in _largest([*chain(*of_ranks)])[:MOST_METRICS] if name != REST]
    columns = math.ceil(last / width)
    return {
        "ranks": [f"rank {series.rank} ({series.host})" for series in ranks[:MOST_RANKS]],
        "left_out": max(0, len(ranks) - MOST_RANKS),
        "width": width,
        "metrics": ["whole step", *(table_label(name, names) for name in names)],
        "ms": [[_columns(blocks, name, width, columns) for blocks in of_ranks] for name in (None, *names)],
    }


def _columns(blocks: Sequence[ChartBlock], name: str | None, width: int, columns: int) -> list[float | None]:
    sums, counts = [0] * columns, [0] * columns
    for block in blocks:
        at = (block.first - 1) // width
        sums[at] += block.step_ns if name is None else block.sections_ns.get(name, 0)
        counts[at] += block.steps
    return [_ms(total / count) if count else None for total, count in zip(sums, counts, strict=True)]


MOST_SPANS: Final = 6_000  # some 100 kB of the page


def recorded_data(series: RankSeries) -> dict[str, Any]:
    """Return the recorded steps of a rank, by number. Beyond the limit, the slow steps with the shortest times go."""
    order = sorted(series.recorded, key=lambda step: (step.why == SLOW, -step.duration_ns))
    spans = accumulate(sum(len(lane.sections) for lane in step.lanes) for step in order)
    chosen = [step for step, so_far in zip(order, spans, strict=True) if so_far <= MOST_SPANS]
    chosen.sort(key=lambda step: step.number)
    names = list(dict.fromkeys(name for step in chosen for lane in step.lanes for name in lane.sections))
    place = {name: at for at, name in enumerate(names)}
    return {
        "names": [table_label(name, names) for name in names],
        "steps": [_step(step, place) for step in chosen],
        "left_out": len(order) - len(chosen),
    }


def has_device(step: StepLanes[str]) -> bool:
    """Return whether the step was seen on a device."""
    return any(lane.thread.startswith(DEVICE_LANE) for lane in step.lanes)


def _step(step: StepLanes[str], place: dict[str, int]) -> dict[str, Any]:
    # A device behind the host does its part of the step later.
    us = (step.end_ns - step.begin_ns) // NS_PER_US
    on_device_us = [us for lane in step.lanes if lane.thread.startswith(DEVICE_LANE) for us in lane.end_us]
    return {
        "step": step.number,
        "why": step.why,
        "ms": round(step.duration_ns / NS_PER_MS, 3),
        "us": us,
        "shown_us": max([us, *on_device_us]),
        "left_out": step.left_out,
        # Of each span: name, begin in us since the begin of the step, duration in us, row.
        "lanes": [
            {
                "thread": lane.thread,
                "spans": [
                    [place[section], begin_us, end_us - begin_us, row]
                    for section, begin_us, end_us, row in rows_of(lane)
                ],
            }
            for lane in step.lanes
        ],
    }


def rows_of(lane: Lane[str]) -> list[tuple[str, int, int, int]]:
    """Return spans by their begins, each with the first row that is free: of nested spans that is their depth."""
    ends_us: list[int] = []  # of the last span in each row
    placed = []
    for section, begin_us, end_us in lane.by_begin():
        row = next((row for row, last_us in enumerate(ends_us) if last_us <= begin_us), len(ends_us))
        ends_us[row : row + 1] = [end_us]
        placed.append((section, begin_us, end_us, row))
    return placed
