"""Cost of a report on 64 to 1,024 ranks from their journals: ``python -m benchmarks.ranks_merge``.

Every rank has a journal of full size, 10,000 steps of 12 sections in 200 intervals, with a summary after each of
them, filled to its limits. All of it comes from the profiler's own writer. The intervals of four different ranks are
recorded and summed up; the others have theirs from one of these, with begin lines and summaries of their own.
"""

import os
import random
import shutil
import sys
import time
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final, NamedTuple

from benchmarks.children import ROOT, environment
from benchmarks.figures import Figure, print_figures, print_table
from training_profiler.aggregation.accumulator import Accumulator
from training_profiler.base.sections import SectionNames
from training_profiler.base.units import BYTES_PER_GB, BYTES_PER_MIB, MS_PER_S, NS_PER_S
from training_profiler.model.ranks import BLOCK_STEPS, MOST_BLOCKS, RankId
from training_profiler.model.snapshot import Health
from training_profiler.ranks.summary import MOST_BUCKETS, RankSection, RankSummary, RankSyncPoint, StepTimeBucket
from training_profiler.recording.event_codes import STEP_END
from training_profiler.recording.recorder import Recorder
from training_profiler.storage.journal import Journal
from training_profiler.storage.journal_discovery import find_journals, select_attempt
from training_profiler.storage.run_folder import journal_name
from training_profiler.storage.run_reader import received_ranks

WORLDS: Final = (64, 256, 1024)
STEPS: Final = 10_000
STEPS_AN_INTERVAL: Final = 50
INTERVALS: Final = STEPS // STEPS_AN_INTERVAL
BYTES_A_RANK: Final = 2_800_000
TIMES: Final = 3  # of which the best counts
RANKS_A_HOST: Final = 8
VARIANTS: Final = 4
MEETINGS: Final = 64
MOST_CPU_S: Final = 60.0
MOST_BYTES: Final = 2 * BYTES_PER_GB
MOST_SLOPE: Final = 1.5  # CPU a rank of 1,024, over that of 256: linear is 1
BEGAN_NS: Final = 1_790_000_000 * NS_PER_S
RUN: Final = "20261121-142530"
# A step of 0.3 s: 12 sections and what they take in ms.
SECTIONS: Final = {
    "data_loading": 12.0, "data_transfer": 3.0, "forward_pass": 80.0, "attention": 30.0, "backward_pass": 110.0,
    "synchronization": 25.0, "clip_gradients": 4.0, "optimizer_step": 18.0, "ema_update": 5.0,
    "metrics_computation": 2.0, "logging": 1.0, "scheduler": 0.5,
}  # fmt: skip


class Cost(NamedTuple):
    """The cost of one report."""

    cpu_s: float
    wall_s: float
    peak_bytes: int


class Clock:
    """A clock in ns that stands still until it is moved."""

    def __init__(self) -> None:
        self.now_ns = NS_PER_S

    def __call__(self) -> int:
        return self.now_ns


def run() -> list[Figure]:
    """Measure, print and return the cost of reports; takes a minute, and 3 GB of disk for that time."""
    print(f"Journals of {STEPS:,} steps, {len(SECTIONS)} sections, {INTERVALS} intervals and as many summaries a rank")
    rows: list[list[str]] = []
    costs: dict[int, Cost] = {}
    rank_ms: dict[int, float] = {}
    with TemporaryDirectory() as parent:
        free_bytes = shutil.disk_usage(parent).free
        if free_bytes < 2 * WORLDS[-1] * BYTES_A_RANK:
            print(f"not measured: {parent} has {free_bytes / BYTES_PER_GB:.1f} GB, and should have 6\n")
            return [Figure(f"CPU of a report on {WORLDS[-1]:,} ranks", None, MOST_CPU_S, "s", 1)]
        intervals = [recorded(variant, Path(parent)) for variant in range(VARIANTS)]
        for world in WORLDS:
            folder = Path(parent) / RUN
            begin_s = time.perf_counter()
            size = write_run(folder, world, intervals)
            took_s = time.perf_counter() - begin_s
            text, data = (min(report(folder, *words) for _ in range(TIMES)) for words in ((), ("--json",)))
            costs[world] = max(text, data)
            rank_ms[world] = min(merge_cpu_s(folder) for _ in range(TIMES)) / world * MS_PER_S
            shutil.rmtree(folder)
            for what, cost in (("text", text), ("--json", data)):
                rows.append(
                    [
                        f"{world:,} {what}",
                        f"{size / 1e6:.0f}",
                        f"{took_s:.0f}",
                        f"{cost.cpu_s:.2f}",
                        f"{cost.wall_s:.2f}",
                        f"{cost.peak_bytes / BYTES_PER_MIB:.0f}",
                    ]
                )
    print_table(["ranks, report", "journals MB", "written in s", "CPU s", "wall s", "peak MiB"], rows)
    merges = (f"{ms:.2f} ms of {world:,}" for world, ms in rank_ms.items())
    print(f"CPU of merging a rank: {', '.join(merges)}\n")
    most = WORLDS[-1]
    stats = [
        Figure(f"CPU of a report on {most:,} ranks", costs[most].cpu_s, MOST_CPU_S, "s", 1),
        Figure("its memory", costs[most].peak_bytes / BYTES_PER_GB, MOST_BYTES / BYTES_PER_GB, "GB", 2),
        Figure(
            "CPU of merging a rank of 1,024, over that of 256", rank_ms[most] / rank_ms[WORLDS[-2]], MOST_SLOPE, "", 2
        ),
    ]
    print_figures(stats)
    return stats


def recorded(variant: int, folder: Path) -> bytes:
    """Return the interval lines of one rank, as its recorder, its sums and its journal make them of every step."""
    clock, names, chance = Clock(), SectionNames(), random.Random(variant)
    recorder = Recorder(clock=clock, names=names)
    accumulator = Accumulator(names, clock())

    def drain() -> None:
        accumulator.add(recorder.drain(), recorder.thread_id(), [])

    recorder.on_full = drain
    path = folder / f"variant{variant}.jsonl"
    journal = Journal(path, 0, names, clock(), None)
    begin = path.read_bytes()
    for step in range(STEPS):
        for name, ms in SECTIONS.items():
            with recorder.section(name):
                clock.now_ns += round(ms * chance.uniform(0.9, 1.2 + 0.1 * variant) * 1e6)
        clock.now_ns += 1_000_000
        recorder.mark(STEP_END)
        if (step + 1) % STEPS_AN_INTERVAL == 0:
            drain()
            totals, step_ns = accumulator.pop_totals()
            journal.append(journal.lines.interval(totals, step_ns, Health(), []))
    journal.close(Health(), None)
    lines = path.read_bytes()[len(begin) :].splitlines(keepends=True)
    path.unlink()
    return b"".join(lines[:-1])  # without the end's


def write_run(folder: Path, world: int, intervals: list[bytes]) -> int:
    """Write the journals of a run of ``world`` ranks; return their size in bytes."""
    folder.mkdir()
    for rank in range(world):
        write_rank(folder, rank, world, intervals[rank % len(intervals)].splitlines(keepends=True))
    return sum(path.stat().st_size for path in folder.iterdir())


def write_rank(folder: Path, rank: int, world: int, intervals: list[bytes]) -> None:
    """Write the journal of one rank."""
    who = RankId(rank, world, f"node{rank // RANKS_A_HOST:03d}", rank // RANKS_A_HOST, rank % RANKS_A_HOST)
    begin = {"run": RUN, "pid": 1000 + rank, "host": who.host, "wall_ns": BEGAN_NS, "who": asdict(who)}
    path = folder / journal_name(rank)
    journal = Journal(path, rank, SectionNames(), NS_PER_S, None, begin)
    summary = None
    with path.open("ab") as file:
        for number, interval in enumerate(intervals, 1):
            if summary is None or number % 20 == 0 or number == len(intervals):  # the others differ only in numbers
                summary = summary_of(who, number * STEPS_AN_INTERVAL).to_data()
            file.write(interval)
            file.flush()
            journal.append(journal.lines.rank(summary))
    journal.close(Health(), None)


def summary_of(who: RankId, steps: int) -> RankSummary:
    """Return the summary of a rank after ``steps`` steps, filled to its limits."""
    chance = random.Random(who.rank * 1_000_003 + steps)
    step_ns = {name: round(ms * chance.uniform(0.95, 1.1) * 1e6) for name, ms in SECTIONS.items()}
    if who.rank == who.world_size // 2:
        step_ns["data_loading"] *= 3
    own_ns = {name: ns * steps for name, ns in step_ns.items()}
    every = 1
    while (steps + 1) / (BLOCK_STEPS * every) > MOST_BLOCKS:
        every *= 2
    firsts = range(0, steps - BLOCK_STEPS + 1, BLOCK_STEPS * every)
    pace = max(1, steps // MOST_BUCKETS)
    sync_ns, total_ns = step_ns["synchronization"], sum(step_ns.values())
    return RankSummary(
        who=who,
        number=steps // STEPS_AN_INTERVAL,
        begin_ns=BEGAN_NS,
        sent_ns=BEGAN_NS + total_ns * steps,
        steps=steps,
        settled_steps=steps - 3,
        settled_ns=total_ns * (steps - 3),
        sync_ns=sync_ns * (steps - 3),
        knows_sync=True,
        sections={name: RankSection(steps, ns, ns, ns) for name, ns in own_ns.items()},
        exchanges=steps,
        sampled=steps // 100 + 10,
        exchange_ns=30_000_000 * steps,
        exchange_hidden_ns=20_000_000 * steps,
        step_times=[StepTimeBucket(pace, total_ns * pace, sync_ns * pace) for _ in range(min(MOST_BUCKETS, steps))],
        blocks={first: [round(sync_ns * chance.random() * 2) for _ in range(BLOCK_STEPS)] for first in firsts},
        hottest_lines={name: f"train.py:{100 + i} train_step" for i, name in enumerate(SECTIONS)},
        sync_points=[
            RankSyncPoint(
                f"all:{k}", BEGAN_NS + k * NS_PER_S + chance.randrange(10**7), BEGAN_NS + k * NS_PER_S + 11 * 10**6
            )
            for k in range(MEETINGS)
        ],
        is_final=steps == STEPS,
    )


def merge_cpu_s(folder: Path) -> float:
    """Return the CPU time of reading and comparing the summaries of all ranks, without the rest of the report."""
    begin_s = time.process_time()
    received_ranks(select_attempt(folder, find_journals(folder), None).of_attempt).stats()
    return time.process_time() - begin_s


def report(folder: Path, *words: str) -> Cost:
    """Return what ``training-profiler report`` takes in a process of its own."""
    command = [sys.executable, "-m", "training_profiler", "report", str(folder), *words]
    begin_s = time.perf_counter()
    pid = os.posix_spawn(
        sys.executable,
        command,
        environment(is_on=False, folder=str(ROOT)),
        file_actions=[(os.POSIX_SPAWN_OPEN, 1, str(folder / "printed"), os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)],
    )
    _, status, usage = os.wait4(pid, 0)
    if status:
        raise RuntimeError(f"{' '.join(command)} ended with {os.waitstatus_to_exitcode(status)}")
    peak_bytes = usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024)  # KiB on Linux (getrusage(2))
    return Cost(usage.ru_utime + usage.ru_stime, time.perf_counter() - begin_s, peak_bytes)


if __name__ == "__main__":
    run()
