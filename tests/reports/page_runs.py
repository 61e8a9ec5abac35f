"""Pages of made-up runs."""

import random
from array import array
from dataclasses import replace

from tests.support.recording import section_stats, snapshot_of
from training_profiler.diagnosis import Finding
from training_profiler.model.lines import WorkerLineStats, WorkerStats
from training_profiler.model.location import Location
from training_profiler.model.ranks import AllRanksStats, RankId, RankStats
from training_profiler.model.series import EpochSpan, Lane, RankSeries, StepLanes, Stretch
from training_profiler.model.snapshot import EpochStats, Health, LineStats, LoaderStats, Snapshot
from training_profiler.reports.page_render import PageOrigin, render_page

HOSTILE = '</script><img src=x onerror="window.harmed=1">\'&{{data}}<!--'
NAMES = ("data_loading", "forward_pass", "backward_pass", "optimizer_step", "a", "b", "c", "d", "e", "f")
MS = 1_000_000
LONGEST = 201


def series_of(rank: int, steps: int, name: str = "a", steps_a_block: int = 4) -> RankSeries:
    """Return a rank with ten sections, one of them called ``name``; step 201 is the longest."""
    rng = random.Random(rank)
    names = [name if each == "a" else each for each in NAMES]
    stretches, at_ns = [], 0
    for begin in range(0, steps, 100):
        count = min(100, steps - begin)
        columns = [[rng.randint(MS, 2 * MS) for _ in names] for _ in range(count)]
        if begin < LONGEST <= begin + count:
            columns[LONGEST - 1 - begin][0] += 300 * MS
        durations = array("q", map(sum, columns))
        blocks = [columns[at : at + steps_a_block] for at in range(0, count, steps_a_block)]
        sections = {each: tuple(sum(step[at] for step in block) for block in blocks) for at, each in enumerate(names)}
        end_ns = at_ns + sum(durations)
        levels = {"cpu_process": 1 + rng.random(), "cpu_host": rng.random(), "ram_process_bytes": 2e9 + begin}
        stretches.append(
            Stretch(at_ns, end_ns, begin, durations, (), steps_a_block, sections, 0, levels, 0 if not begin else None)
        )
        at_ns = end_ns
    line = Location("train.py", 3, "loss", inside=f"lib/x.py:3 {name}")
    lines_ns = {each: {line: 400 * MS + at * MS, None: 3 * MS} for at, each in enumerate(names)}
    recorded = (recorded_step(1, "first", 15 * MS, name), recorded_step(LONGEST, "slow", 315 * MS, name))
    epochs = (EpochSpan(0, 0, at_ns),)
    return RankSeries(rank, f"node{rank // 8}", 0, 0, tuple(stretches), epochs, {}, lines_ns, recorded)


def recorded_step(number: int, why: str, ns: int, name: str) -> StepLanes:
    """Return a step whose first half is a section called ``name``, with a nested one, beside another thread."""
    begin_ns = number * 100 * MS
    half, quarter = (ns // part // 1_000 for part in (2, 4))
    own = Lane("MainThread", (name, "b"), (0, quarter), (half, half))
    other = Lane(name, ("prefetch",), (-quarter,), (quarter,))
    return StepLanes(number, why, begin_ns, begin_ns + ns, ns, 7, (own, other))


def snapshot(ranks: int = 1, steps: int = 400, name: str = "a") -> Snapshot:
    made = snapshot_of({"data_loading": 0.3, "forward_pass": 0.2, "backward_pass": 0.3, name: 0.1}, steps=steps)
    nested = section_stats("forward_pass/inner", 0.01, count=steps, avg_s=0.001, parent="forward_pass")
    all_ranks = None
    if ranks > 1:
        rows = [RankStats(RankId(rank, ranks, name), steps, 0.1, 0.09, 0.01, cause=name) for rank in range(ranks)]
        all_ranks = AllRanksStats(ranks, tuple(rows), left_out=(name,))
    return replace(
        made,
        sections={**made.sections, nested.name: nested},
        lines={"data_loading": (LineStats("train.py", 3, name, 0.3, 100),)},
        epochs=(EpochStats(0, 10.0, steps, steps, None, 0.1, {name: 10.0}, None, None),),
        loaders=(LoaderStats(name, steps, None, 1.0, "train", 0.01, workers=workers(name)),),
        ranks=all_ranks,
        health=Health(notes=(name,)),
        ended_by=name,
    )


def workers(name: str) -> WorkerStats:
    """Return what a loader's workers did: two lines, one of which called a library."""
    lines = (
        WorkerLineStats("data.py", 7, "__getitem__", 0.75, 30, "transform", "PIL/Image.py:9 resize"),
        WorkerLineStats("data.py", 3, name, 0.25, 10, "fetch"),
    )
    return WorkerStats(2, 100, 0.5, 0.02, 0.05, 0.01, 0.0, 80, {"transform": 0.5, "idle": 0.5}, lines)


def page_of(ranks: int = 1, steps: int = 400, name: str = "a", has_source: bool = True) -> str:
    """Return a page on which each text of the run contains ``name``; with the source code of a line, or why not."""
    of_run = snapshot(ranks, steps, name)
    finding = Finding("data-loading-bound", f"waits for {name} at train.py:3", {"share": 0.3}, 20.0, f"change {name}")
    sources = {("train.py", 3): (2, ("x = 1", f"y = {name!r}", ""))} if has_source else {}
    missing = {} if has_source else {"train.py": f"changed by {name}"}
    origin = PageOrigin(name, name, name, name, {name: name}, {name: name, f"{name} 2": ""})
    return render_page(
        of_run, [finding], [series_of(rank, steps, name) for rank in range(ranks)], origin, sources, missing
    )
