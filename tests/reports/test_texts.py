"""What reports say of runs, to the letter: each case is a claim, its text stands in ``tests/golden/reports``."""

import json
import re
from array import array
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.support.golden import assert_golden
from tests.support.loader_workers import WORKERS, waiting_run
from tests.support.ranks import rank_id, rank_row, ranks_of
from tests.support.recording import FakeRun, section_stats, snapshot_of, step_stats
from tests.support.stacks import ASKED_NS, frame, stacks_of, training_at
from training_profiler.base.sections import FORWARD_WITHOUT_GRAD
from training_profiler.diagnosis import Finding, diagnose
from training_profiler.diagnosis.finding import Action, Change, Fix, brief
from training_profiler.model.lines import UnsampledWait
from training_profiler.model.location import NOT_SAMPLED, Location
from training_profiler.model.ranks import (
    AllRanksStats,
    AttemptStats,
    ClockStats,
    GradientSyncStats,
    HostStats,
    RankId,
    RankStacks,
    RankStats,
    SectionSpread,
    ThreadStack,
)
from training_profiler.model.series import EpochSpan, Lane, RankSeries, StepLanes, Stretch
from training_profiler.model.snapshot import (
    DeviceTimingStats,
    EpochStats,
    GpuStats,
    Growth,
    Health,
    Level,
    LineStats,
    LoaderStats,
    MachineStats,
    Price,
    Snapshot,
    Throughput,
)
from training_profiler.reports.console import Origin, render_epoch, render_final, render_periodic
from training_profiler.reports.exports import collapsed, placed_steps, speedscope, timeline_trace
from training_profiler.reports.hang import render_stacks, waits_for, where_text
from training_profiler.reports.layout import Layout
from training_profiler.reports.ranks import attempt_lines, exchange_lines, rank_lines
from training_profiler.reports.report_json import as_data
from training_profiler.reports.resources import energy_text, loader_lines, machine_lines
from training_profiler.reports.sections import (
    largest_shares,
    status_text,
)
from training_profiler.reports.verdict import checklist, checklist_lines, insight_lines, saving_text, verdict
from training_profiler.reports.watch import EventLog, WatchedRun, progress_line, sparkline, watch_lines

FILE, LINES, WIDE = Layout(), Layout(format="lines"), Layout(width=118)
GIB = 2**30
H200 = DeviceTimingStats("cuda", "NVIDIA H200", "events", 300, {})


def finding(code: str = "data-loading-bound", message: str = "a message", saving_s: float = 1.0, fix: str = "a fix"):
    return Finding(code, message, {}, saving_s, fix)


def level(value: float) -> Level:
    return Level(value / 2, value, value / 4)


def run_with(run: Snapshot, **changes: Any) -> Snapshot:
    """Return a run with other figures; ``sections`` and ``step`` are changes of those it has."""
    sections = {**run.sections}
    for name, change in changes.pop("sections", {}).items():
        sections[name] = replace(sections[name], **change) if isinstance(change, dict) else change
    step = changes.pop("step", None)
    return replace(run, sections=sections, step=replace(run.step, **step) if step else run.step, **changes)


def part(text: str, title: str) -> str:
    """Return the lines below that with ``title``, up to an empty one."""
    return text.split(title, 1)[1].split("\n", 1)[1].split("\n\n")[0]


def largest_of(run: Snapshot) -> str:
    return largest_shares({name: section.share for name, section in run.sections.items()})


def with_words(text: str, *words: str) -> list[str]:
    return [line for line in text.splitlines() if any(word in line for word in words)]


TAIL = {"(outside steps)": {"before_s": 0.2, "after_s": 0.35}, "validation_epoch": {"after_s": 0.5}}
EPOCH = EpochStats(1, 5.0, 50, 50, None, None, {}, None, None)
CHANGES = [
    finding(message="41.0% of step time is spent waiting for the next batch (data_loading: 41 ms)", saving_s=4.1),
    finding("optimizer-heavy", "10.0% of step time is spent in the optimizer", 1.0, "fused=True in the optimizer"),
]


def gpu_run() -> Snapshot:
    """Return a run on a GPU that waits for data."""
    shares = {"data_loading": 0.41, "backward_pass": 0.29, "forward_pass": 0.16, "optimizer_step": 0.1}
    more = (
        section_stats("(outside steps)", 0.06, count=0, avg_s=None, self_s=0.6),
        section_stats("validation_epoch", 0.07, count=2, avg_s=0.35, self_s=0.7),
        section_stats("(profiler)", 0.002, count=3, avg_s=0.0066, self_s=0.02),
    )
    return run_with(
        snapshot_of(shares),
        wall_s=11.32,
        sections={row.name: row for row in more},
        lines={"data_loading": (LineStats("data.py", 14, "augment", share=0.25, samples=250),)},
        epochs=(EPOCH, EPOCH),
        throughput=Throughput(10.0, samples_per_s=352.0, mfu=0.112, peak_tflops=312.0),
        machine=MachineStats(samples=9, gpus=(GpuStats(0, "NVIDIA A100", loop_utilization=Level(0.57, 0.9, 0.5)),)),
    )


def screen(run: Snapshot, findings: Any = (), **layout: Any) -> str:
    """Return the lines below the detailed breakdown."""
    text = render_final(run, findings, Layout(**layout), origin=Origin("train.py", "runs/x", "train.py --lr 0.1"))
    return text[text.index("Time Distribution:") :]


COUNTED = GpuStats(
    0,
    "NVIDIA H200",
    loop_utilization=Level(1.0, 1.0, 1.0),
    **{name: Level(value, value, value) for name, value in (
        ("sm_active", 0.96), ("tensor_active", 0.93), ("dram_active", 0.17), ("pcie_rx_bytes_per_s", 2e9),
        ("pcie_tx_bytes_per_s", 1e6), ("throttled_power", 0.8), ("pcie_width", 8.0), ("pcie_most_width", 16.0),
        ("pcie_generation", 5.0), ("pcie_most_generation", 5.0),
    )},
)  # fmt: skip


def first_screens() -> dict[str, Any]:
    def waiting(share: float, **changes: Any) -> Snapshot:
        """Return a run on a GPU with 4 of 10 s in no section, some of them in ``loss.item()``."""
        line = LineStats("train.py", 9, "main", 0.4, 200, waiting_share=share, waits_in="item")
        run = snapshot_of({"backward_pass": 0.4, "forward_pass": 0.2})
        return run_with(run, **{"lines": {"other": (line,)}, "device": H200, **changes})

    def copying(busy: float) -> Snapshot:
        """Return a run on a GPU with 6 of 10 s in copies that take the device 1 s."""
        run = snapshot_of({"data_transfer": 0.6, "forward_pass": 0.2, "backward_pass": 0.2})
        copies = replace(run.sections["data_transfer"], device_count=100, device_total_s=1.0)
        gpus = (GpuStats(0, "NVIDIA H200", loop_utilization=Level(busy, 1.0, busy)),)
        machine = MachineStats(samples=9, gpus=gpus)
        return run_with(run, device=H200, machine=machine, sections={**run.sections, "data_transfer": copies})

    waits = finding("waits-for-device", "Python waits for the device", 1.0, "Keep the tensor")
    once = "Make the DataLoader once, before the loop"
    twice = [
        finding("first-batch-slow", "The first batch of each epoch takes long (3 ms)", 3.0, once),
        finding("step-time-varies", "Step time varies by 99%", 2.0, once),
    ]
    queued = {"median_s": 0.065, "p95_s": 0.4, "explained": {"other": 0.9}}
    rates = Throughput(10.0, samples_per_s=1.95, tokens_per_s=31.2)
    even = snapshot_of({"forward_pass": 0.5, "backward_pass": 0.5})
    lines = "train.py:17 <module> (3 lines) (39% of it: line 17 28%, line 18 9%, line 16 2%)"
    placed = replace(finding("unexplained", fix="another fix"), evidence={"lines": lines})
    short = replace(placed, message="9.0% is in no section: a.py:7 main", evidence={"lines": "a.py:7 main"})
    actions = (
        Action("DataLoader(..., num_workers=2, persistent_workers=True)", (Change.NUM_WORKERS,), 0.5),
        Action("do less at data.py:14 augment", (Change.LESS_PREPROCESSING,)),
    )
    two = replace(CHANGES[0], fix=Fix("Set num_workers=2", (), actions), step_s=0.1, step_if_fixed_s=0.059)
    waited = "Other programs kept this machine's CPUs busy: the training waited 3.00 s (26% of the run) for one"
    busy = finding("machine-busy", waited, 3.0, "Run it again on a quiet machine")
    return {
        "a GPU run that waits for data": screen(gpu_run(), CHANGES),
        "in 60 columns": screen(gpu_run(), CHANGES, width=60),
        "of 200 columns, 110 are used, with blocks and colors": screen(
            gpu_run(), CHANGES, width=200, has_color=True, is_unicode=True
        ).replace("\x1b", "ESC"),
        "waiting for the device": screen(waiting(0.3), [waits]),
        "waiting for a busy device in a copy": screen(copying(0.95), []),
        "the same, with an idle device": screen(copying(0.5), []),
        "the 95th percentile stands where it is known": screen(run_with(gpu_run(), step={"p95_s": 0.26}), CHANGES),
        "steps that mostly queue work have no percentile": screen(waiting(0.3, step=queued), CHANGES),
        "a change that two findings ask for is written once": screen(gpu_run(), [*twice, CHANGES[1]]),
        "and once in all insights": insight_lines(gpu_run(), twice, Layout(200)),
        "a line of figures ends between two of them": screen(run_with(gpu_run(), throughput=rates), CHANGES),
        "the bars of a mean step leave out 40 s of warm-up": screen(
            run_with(even, sections={"forward_pass": {"step_self_s": 45.0}})
        ),
        "in 40 columns": screen(gpu_run(), CHANGES, width=40),
        "a ladder of what a GPU does": screen(
            run_with(
                gpu_run(), throughput=replace(rates, mfu=0.67, tflops=665.0), machine=MachineStats(9, gpus=(COUNTED,))
            ),
            CHANGES,
        ),
        "what follows the training stands apart": render_final(
            run_with(gpu_run(), step={"before_s": 0.2}, sections=TAIL), CHANGES, is_full=True
        ),
        "two actions have savings of their own": screen(gpu_run(), [two]),
        "a busy machine that costs less is one line": screen(gpu_run(), [CHANGES[0], busy]),
        "with an earlier run": render_final(
            even, diagnose(even), origin=Origin("train.py", "runs/b", "train.py", "runs/a")
        ).partition("VERDICT")[2],
        "small savings and remarks are no changes": screen(
            gpu_run(), [finding("x", saving_s=0.01), finding("warm-up", saving_s=5.0), finding(saving_s=0.0, fix="")]
        ),
        "risks of memory are changes without a known saving": screen(
            gpu_run(), [finding("gpu-memory-high", "GPU 0 is filled to 97.0% of 80.0 GiB at its peak", 0.0)]
        ),
        "a place whose lines do not fit stands without them": screen(gpu_run(), [CHANGES[0], placed]),
        "a place in the claim is not repeated below it": screen(gpu_run(), [CHANGES[0], short]),
        "no verdict without steps": screen(Snapshot()),
    }


def verdicts() -> dict[str, Any]:
    def on_gpu(busy: float | None, mfu: float | None) -> Snapshot:
        gpu = GpuStats(0, "NVIDIA H200", loop_utilization=None if busy is None else Level(busy, busy, busy))
        run = snapshot_of({"forward_pass": 0.4, "backward_pass": 0.5})
        machine = MachineStats(samples=9, gpus=(gpu,))
        return replace(run, device=H200, throughput=Throughput(10.0, mfu=mfu), machine=machine)

    shares = {
        "forward, backward and optimizer": {"forward_pass": 0.3, "backward_pass": 0.56, "optimizer_step": 0.1},
        "a teacher that computes counts": {FORWARD_WITHOUT_GRAD: 0.9, "forward_pass": 0.02, "backward_pass": 0.03},
        "steps that are replayed compute": {"graph_replay": 0.9, "forward_pass": 0.01, "backward_pass": 0.01},
        "and alone": {"graph_replay": 0.9},
        "no claim about computing": {"forward_pass": 0.3, "backward_pass": 0.3},
    }
    claims = (
        "step time varies by 13% (std over mean; longest 9 ms); 73% comes from x",
        "83.4% of step time is spent waiting (data_loading: 6.8 ms)",
        "20.0% of step time is in no section: train.py:3 main (50%)",
        "rank 3 (node1) is 40% slower",
        "GPU 0: full",
    )
    queues = {(busy, mfu): on_gpu(busy, mfu) for busy in (None, 0.6, 0.97) for mfu in (None, 0.04, 0.35)}
    computing, hung = snapshot_of({"forward_pass": 0.9}), Health(notes=("no training step for 70 s, at a.py:6 save",))
    return {
        **{name: verdict(snapshot_of(run), []) for name, run in shares.items()},
        "a small saving": verdict(
            snapshot_of({"forward_pass": 0.3, "backward_pass": 0.3}), [finding("x", saving_s=0.01)]
        ),
        "a hang that is ended, and one that is over": [
            verdict(run_with(computing, sections={"forward_pass": {"after_s": s}}, ended_by="SIGTERM", health=hung), [])
            for s in (86.0, 5.0)
        ],
        "a run outside steps": verdict(replace(computing, wall_s=100.0), []),
        "a host that queues work does not show that its device computes: busy, MFU": [
            f"{key}: {tuple(verdict(run, []))}" for key, run in queues.items()
        ],
        "the claim of a message": list(map(brief, claims)),
    }


def reports() -> dict[str, Any]:
    forward = section_stats("forward_pass", 0.663, count=50, avg_s=0.3047, total_s=15.234, self_s=15.234)
    forward = replace(forward, min_s=0.2981, max_s=0.3123)
    other = section_stats("other", 0.337, count=0, avg_s=None, total_s=7.743, self_s=7.743)
    run = Snapshot(steps=50, wall_s=22.977, sections={"forward_pass": forward, "other": other})
    percentiles = {"p50_s": 0.3, "p95_s": 0.31, "p99_s": 0.312, "std_s": 0.0000125}
    long_name = "an_outer_section_of_the_program/with_a_long_name/and_a_part"
    names, timeless = FakeRun(), FakeRun()
    for name in ("\x1b[2Jwiped\r\nfake: 100.0%", "1e3", "007", "| a |"):
        names.spend(name, 1)
    timeless.step(forward_pass=0)
    final = replace(
        run,
        steps=1000,
        sections={"forward_pass": replace(forward, step_self_s=15.0), "other": other},
        step=step_stats(1000, 0.02, warmup_count=2, warmup_s=1.0, std_s=0.001, max_s=0.03, max_step=7),
        loaders=(LoaderStats("train", 1000, 32000, 1.5),),
        health=Health(dropped=3, disabled=("console (OSError: gone)",), overhead_s=0.0229, notes=("a note",)),
        run_folder="/home/me/runs/20261121-142530",
        ended_by="KeyboardInterrupt",
        open_sections=("forward_pass", "attention", "user:other"),
    )
    remark = finding("slowest-component", "Slowest component: forward_pass (0.3047s avg)", 0.0, "")
    found = [finding(message="20.0% of step time is spent waiting", saving_s=4.5954, fix="raise num_workers"), remark]
    long = finding("x", "a message " * 12 + "end", 150.0, "a fix " * 12 + "end")
    before_after = replace(finding("x", saving_s=4.6), step_s=0.02, step_if_fixed_s=0.0154)
    epoch = replace(EPOCH, wall_s=45.23, batches=32, avg_batch_s=0.1417)
    epoch = replace(epoch, self_s={"data_loading": 24.55, "forward_pass": 20.45, "other": 0.23})

    return {
        "with the first finding of the run": render_periodic(run, gpu_run(), CHANGES).partition("Insights:\n")[2],
        "wide terminals get percentiles": render_periodic(
            run_with(run, sections={"forward_pass": percentiles}), layout=Layout(width=120)
        ),
        "long names are shortened": render_periodic(
            replace(run, sections={long_name: replace(forward, name=long_name), "other": other})
        ),
        "unknown times are left out": render_periodic(
            replace(run, sections={"sampling": section_stats("sampling", 0.0, count=0, avg_s=None)}), layout=LINES
        ),
        "hostile names are escaped": render_periodic(names.snapshot()),
        "and in lines": render_periodic(names.snapshot(), layout=LINES),
        "no time has passed": render_periodic(timeless.snapshot(), layout=LINES),
        "final": render_final(final, found, origin=Origin("train.py", "runs/20261121-142530"), has_checklist=True),
        "final, in lines": render_final(final, [long, remark], LINES),
        "final, of an empty run": render_final(Snapshot(), []),
        "a step before and after": part(render_final(run, [before_after]), "Performance Insights:"),
        "steps of a capture are excluded or named, wall time is accounted for": [
            said
            for changes in (
                {"disturbed_count": 6},
                {"disturbed_count": 60},
                {"before_s": 2.5},
                {"before_s": 0.0},
                {"before_s": 5.0},  # a clock that stepped back
            )
            for text in (render_final(replace(run, step=step_stats(700, 0.02, **changes)), []),)
            for said in with_words(text, "Wall time", "Step time", "steps in or", "cluded)")
        ],
        "a single step": with_words(render_final(replace(run, step=step_stats(1, 0.132)), []), "1 step", " step 132"),
        "epoch": render_epoch(replace(epoch, samples=1024), ["Data generation bottleneck: 65.0%"]),
        "epoch without batches": render_epoch(replace(epoch, batches=None, avg_batch_s=None)),
        "epoch without time": render_epoch(replace(epoch, wall_s=0.0, avg_batch_s=0.0)),
        "status": [status_text(1240, 18.42, largest_of(gpu_run()), width) for width in (80, 75, 60)]
        + [status_text(1240, None, "x" * 100, 60), status_text(3, None, "", 80)],
    }


def source_lines() -> dict[str, Any]:
    def run_of(shares: dict[str, float], lines: dict[str, tuple[LineStats, ...]]) -> Snapshot:
        stats = {
            name: section_stats(name, share, count=0 if name[0] in "o(" else 10, self_s=share, total_s=share)
            for name, share in shares.items()
        }
        return Snapshot(steps=10, wall_s=1.0, sections=stats, lines=lines)

    def shown(shares: dict[str, float], *layouts: Layout, **lines: tuple[LineStats, ...]) -> list[str]:
        run = run_of(shares, {name.replace("outside", "(outside steps)"): rows for name, rows in lines.items()})
        return [part(render_final(run, [], layout), "Time Distribution:") for layout in layouts or (FILE,)]

    def line(number: int, function: str, share: float, **more: Any) -> LineStats:
        return LineStats("train.py", number, function, share, int(1000 * share), **more)

    of_other = (line(212, "estimate_loss", 0.31), line(88, "get_batch", 0.092), line(90, "get_batch", 0.009))
    inside = "keras/src/backend/torch/trainer.py:267 TorchTrainer.fit > keras/src/backend/torch/numpy.py:156 matmul"
    library = (
        line(8, "<module>", 0.2, inside=inside),
        line(8, "<module>", 0.1, inside="lib/loop.py:9 fit > callback on_step_end"),
    )
    workers = waiting_run()
    return {
        "lines have columns of their own": shown({"backward_pass": 0.539, "other": 0.461}, FILE, LINES, other=of_other),
        "a library with a long path is shown by its innermost frame": shown(
            {"forward_pass": 0.6, "other": 0.4}, FILE, LINES, other=library
        ),
        "sections above a tenth show lines": shown(
            {"forward_pass": 0.11, "backward_pass": 0.10},
            LINES,
            forward_pass=(line(5, "forward", 0.1),),
            backward_pass=(line(5, "forward", 0.1),),
        ),
        "time in no section does so always, time outside steps where it is long": [
            shown({"a": share, "other": 0.03, "(outside steps)": 0.97 - share}, LINES, other=few, outside=few)
            for share in (0.93, 0.5)
            for few in ((line(5, "main", 0.02),),)
        ],
        "a hang": part(render_final(run_with(workers, sections={"data_loading": {"after_s": 5.0}}), []), "Time D"),
        "data has the lines in workers under a key of its own": as_data(workers, ())["lines"],
    }


def ranks() -> dict[str, Any]:
    loading = SectionSpread("data_loading", 4, 0.0012, 0.0013, 0.022, rank_id(3), 2.4, True)
    saving = SectionSpread("checkpointing", 1, 0.5, 0.5, 0.5, rank_id(0), 0.0, False, never_on=(1, 2, 3))
    tiny = SectionSpread("logging", 4, 1e-6, 1e-6, 1e-6, rank_id(1), 0.0, True)
    fetch = replace(saving, name="first_fetch", ranks=4, never_on=())

    def four(**more: Any) -> AllRanksStats:
        rows = [rank_row(rank, ms / 1000) for rank, ms in enumerate((31, 31.2, 31.1, 52.1))]
        cause = {"cause": "data_loading", "cause_s": 0.0208, "place": "train.py:31 fetch"}
        rows[3] = replace(rows[3], slower_since_step=400, work_over_earlier=1.67, **cause)
        return ranks_of(rows, **{"sections": (loading, tiny, saving), "step_s": 0.05, **more})

    def said(stats: AllRanksStats, layout: Layout = WIDE, first: int = 0) -> list[str]:
        return rank_lines(Snapshot(ranks=stats), layout)[first:]

    silent = [
        rank_row(0),
        replace(rank_row(2), steps=120, last_message_s_ago=35.2, inside=("backward_pass",)),
        replace(rank_row(3), steps=90),
    ]
    ends = [
        rank_row(0, is_final=True),
        rank_row(1, is_final=True, ended_by="ValueError", steps=98),
        rank_row(2, steps=97),
        rank_row(3, is_final=True),
    ]
    hosts = tuple(HostStats(f"n{i}", (i,), 0.03 + i / 1000) for i in range(9))
    shares = {"sync_share": 0.312, "waiting_share": 0.28, "transfer_share": 0.032, "compared_steps": 64}
    attempts = (AttemptStats(0, 120, 35.1, "SIGTERM"), AttemptStats(1, 4, 2.0, is_ended=False))
    clocks = (ClockStats(2, 2, 0.00031, 120), ClockStats(4, 3, 0.002, 9), ClockStats(2, 0))
    syncs = (GradientSyncStats(200, 200, 0.0031, 0.5, 0.0015), GradientSyncStats(200, 12, 0.0031))
    return {
        "four ranks": said(four(**shares)),
        "four ranks, in lines": said(four(), LINES),
        "sections that are short between steps are left out": [
            said(four(sections=(loading, replace(fetch, slowest_total_s=total_s)))) for total_s in (0.024, 0.026)
        ],
        "even ranks": said(ranks_of([rank_row(rank, 0.03 + rank * 1e-5) for rank in range(4)])),
        "unresponsive ranks": said(ranks_of(silent, unresponsive=(2, 3), missing=(1, 5, 6, 7), world_size=8)),
        "clocks have their error": [said(four(clocks=each))[-1] for each in clocks],
        "unreadable journals are named": said(four(left_out=("rank2.jsonl is torn",)))[-1],
        "many hosts are cut": said(AllRanksStats(9, tuple(map(rank_row, range(9))), hosts=hosts), LINES)[-1],
        "ends of other ranks follow that of the first": said(ranks_of(ends)),
        "and are not known before": said(ranks_of([replace(ends[0], is_final=False), *ends[1:]])),
        "gradient synchronization": [exchange_lines(Snapshot(gradient_sync=each)) for each in syncs],
        "earlier attempts": attempt_lines(Snapshot(attempts=attempts)),
        "both reports have the block": [
            part(text, "Ranks: 4 of 4 reported, on 2 hosts (all figures above are of rank 0)")
            for run in (replace(snapshot_of({"forward_pass": 0.5}), ranks=four()),)
            for text in (render_periodic(run), render_final(run, [], is_full=True))
        ],
    }


def loaders() -> dict[str, Any]:
    def loader(name: str, batches: int = 100, wait_s: float = 0.1, phase: str = "train", **others: Any) -> LoaderStats:
        others.setdefault("data_avg_s", wait_s / batches)
        return LoaderStats(name, batches, others.pop("samples", None), wait_s, phase, **others)

    def said(*of: LoaderStats, layout: Layout = FILE, wall_s: float = 10.0, **more: Any) -> list[str]:
        return loader_lines(Snapshot(loaders=of, wall_s=wall_s, **more), layout)

    main = loader("main", 200, 0.22, samples=800, forward_avg_s=0.004, batch_wait_avg_s=0.0125, proportion=2 / 3)
    aux = loader("aux", 100, 1.23, proportion=1 / 3)
    val = loader("aux", 9, 0.01, phase="val", proportion=1.0)
    means = dict.fromkeys(("forward_avg_s", "backward_avg_s", "optimizer_avg_s", "batch_wait_avg_s"), 1.234)
    means |= {"proportion": 0.667, "requested_proportion": 0.667}
    wide = [
        loader("a_loader_of_the_program.py:127" + end, 123456, 1.0, samples=1234567, **means) for end in ("", " (a)")
    ]

    def mix(batches: tuple[int, int], asked: tuple[float | None, float | None]) -> list[str]:
        both = [
            loader(name, count, 0.1, data_avg_s=None, proportion=count / sum(batches), requested_proportion=share)
            for name, count, share in zip(("main", "aux"), batches, asked, strict=True)
        ]
        return said(*both, layout=WIDE)[4:]

    def pair(first: tuple[int, float], second: tuple[int, float], wall_s: float = 10.0) -> list[str]:
        return said(loader("main", *first), loader("aux", *second), wall_s=wall_s, layout=WIDE)[4:]

    thirds = (2 / 3, 1 / 3)
    busy = loader(
        "0", 200, 6.0, workers=replace(WORKERS, cpu_wait_avg_s=0.02, in_order_wait_share=0.4, pinning_share=0.3)
    )
    idle = replace(WORKERS, busy=0.09, samples=117, phases={"idle": 1.0})
    wait = UnsampledWait("a queue between processes", "train.py:9 main", 0.342, 171)
    seen = loader("0", 30, 0.12, num_workers=2)
    return {
        "one": [said(loader("0", batches, 0.12, samples=samples)) for batches, samples in ((30, 480), (1, 1))],
        "and each a line to grep": said(main, aux, val, layout=LINES),
        "all columns fit": said(*wide),
        "a loader over twice as long is slow where that matters": [
            pair((100, 1.0), (100, 1.99)),
            pair((100, 1.0), (100, 2.01)),
            pair((100, 0.1), (100, 0.9), 100.0),  # below 1% of the run
            pair((100, 0.1), (7, 0.9)),  # too few batches
        ],
        "the mix is as asked or names both shares": [
            mix((200, 100), thirds),
            mix((800, 200), thirds),
            mix((72, 28), thirds),  # by chance: sigma is 4.7 points
            mix((657_000, 343_000), thirds),  # a point is rounding
            mix((655_000, 345_000), thirds),
            mix((800, 200), (None, None)),
        ],
        "workers": said(busy),
        "phases that contradict what was timed are left out": said(loader("0", 200, 6.0, workers=idle)),
        "unless that may be chance": said(
            loader("0", 200, 6.0, workers=replace(idle, samples=20, phases={"fetch": 0.02, "idle": 0.98}))
        ),
        "workers without samples": said(
            loader("0", 200, 6.0, workers=replace(WORKERS, phases={}, lines=(), memory_bytes=None))
        ),
        "batches that the training makes": said(
            loader("0", 30, 0.12), batch_parts={"fetch": 0.29, "decode": 0.61, "collate": 0.1}
        ),
        # A thread of the program may read ahead from a loader of torch, whose workers are observed, in either phase.
        "in front of a loader": said(seen, unsampled_waits=(wait,)),
        "in a loader": said(seen, unsampled_waits=(replace(wait, in_loader=True),)),
    }


def machine() -> dict[str, Any]:
    def said(throughput: Throughput | None = None, machine: MachineStats | None = None) -> list[str]:
        return machine_lines(Snapshot(throughput=throughput, machine=machine))

    rates = (
        Throughput(21.34, 85.4, 681.2, flops_per_step=5e12, dtype="bfloat16", tflops=97.3, peak_tflops=312.0,
                   peak_source="NVIDIA A100 data sheet", mfu=0.3119),
        Throughput(0.0521, 0.0521, 1.67),  # batches are steps
        *(Throughput(2.0, tflops=tflops, dtype="float32") for tflops in (0.0062, 4.61e-7, 4.61e-8)),
    )  # fmt: skip
    machines = (
        MachineStats(samples=3),
        MachineStats(samples=9, cpu_wait=level(0.8)),
        MachineStats(samples=9, cpu_wait=level(0.01)),  # shown from one percent on
        MachineStats(samples=1, ram_process_bytes=level(GIB)),
        MachineStats(samples=9, cores=2.0, host_cores=8, cpu_process=level(3.6), cpu_container=level(3.8),
                     cpu_host=level(1.0), ram_process_bytes=level(1.25 * GIB), ram_container_bytes=level(6 * GIB),
                     ram_limit_bytes=24 * GIB, ram_host_bytes=level(64 * GIB), ram_host_total_bytes=256 * GIB),
        MachineStats(1, gpus=(GpuStats(0, "NVIDIA H200", 140 * GIB, level(12 * GIB), level(14 * GIB),
                                       level(15.5 * GIB), level(0.9), level(64.0), level(600.0),
                                       loop_utilization=level(0.9), others_utilization=level(0.1)),)),
        MachineStats(1, gpus=(COUNTED,)),
        MachineStats(1, gpus=(GpuStats(1, "mps", None, level(0.5 * GIB)), GpuStats(2))),
    )  # fmt: skip

    def loop(rate: float, wall_s: float, **step: Any) -> str:
        run = snapshot_of({"backward_pass": 1.0}, before_s=10.0, **step)
        return machine_lines(replace(run, throughput=Throughput(rate), wall_s=wall_s))[0]

    gpus = MachineStats(9, gpus=(GpuStats(0), GpuStats(1)))
    one = replace(snapshot_of({"backward_pass": 1.0}), wall_s=7200.0, price=Price(2.5, "EUR"), machine=gpus)
    of_four = replace(one, ranks=ranks_of([rank_row(rank) for rank in range(4)]))
    costly = finding(saving_s=1800.0)
    by_device = replace(one, machine=None, device=DeviceTimingStats("cuda", "H100", "events", 9))
    unknown = (replace(of_four, price=None), replace(one, machine=None))
    warm = {"warmup_count": 3, "warmup_s": 6.0, "settled_count": 97}
    return {
        "throughput": list(map(said, rates)),
        "machine": [said(machine=each) for each in machines],
        "the pace of the whole loop stands beside that of its steps": [loop(2.0, 60.5), loop(2.0, 110.0)],
        "warm-up is not time between steps": [loop(10.0, 26.0, **warm), loop(10.0, 35.4, **warm)],
        "cost is that of the GPUs of all ranks": [machine_lines(run)[-1] for run in (of_four, one, by_device)],
        "cost in data": [as_data(of_four, [costly])["cost"], as_data(of_four, [costly])["findings"][0]["saving_cost"]],
        "what is not known is not guessed": [
            [machine_lines(run), saving_text(run, costly), as_data(run, [costly])["cost"]] for run in unknown
        ],
        "small costs have more digits": [Price(2.0).of(1.0, 1), Price(2.0, "$").of(3_600_000.0, 1)],
        "energy": [
            energy_text(GpuStats(0, energy_j=joules, energy_s=seconds))
            for joules, seconds in ((360_000.0, 1000.0), (36e6, 100_000.0), (None, None))
        ],
    }


def device_time() -> dict[str, Any]:
    unmeasured = {"the pool of events was empty": 12, "a graph was captured": 3}
    plain = run_with(
        snapshot_of({"data_loading": 0.1, "forward_pass": 0.5}),
        sections={"logging": section_stats("logging", 0.01, min_s=0.1, max_s=0.1)},
    )
    measured = run_with(
        plain,
        device=replace(H200, unmeasured=unmeasured),
        sections={
            "forward_pass": {"device_count": 100, "device_total_s": 6.0},
            "data_loading": {"device_count": 50, "device_total_s": 0.25},
        },
    )
    few = {"data_loading": {"device_count": 5, "device_total_s": 0.025}}
    outside = {"data_loading": {"count": 200, "total_s": 2.0}}
    runs = {
        "measured": measured,
        "outside steps too": run_with(measured, sections=outside),
        "rarely": run_with(measured, sections=few),
        "without steps": replace(measured, step=None),
        "by synchronization": replace(measured, device=replace(H200, timing="sync")),
        "not": plain,
    }
    return {
        "the end of a line": render_periodic(measured, layout=LINES),
        **{f"waiting for input: {name}": with_words(render_final(run, []), "evice") for name, run in runs.items()},
    }


def checks() -> dict[str, Any]:
    shares: tuple[dict[str, float], ...] = (
        {"data_loading": 0.0625, "data_generation": 0.03125},
        {"data_loading": 0.0625, "data_generation": 0.0625, "forward_pass": 0.375, "backward_pass": 0.4375},
        {"forward_pass": 0.3125, "backward_pass": 0.5, "optimizer_step": 0.125},
        {"forward_pass": 0.25, "backward_pass": 0.25, "optimizer_step": 0.1875},
        {"forward_pass": 0.25},
    )
    runs = {str(each): snapshot_of(each, steps=64, step_s=0.125) for each in shares}
    plain = snapshot_of({"data_transfer": 0.1})
    runs |= {f"std {std_s}": snapshot_of({}, std_s=std_s) for std_s in (0.005, 0.02)}
    for busy, memory in ((0.875, 0.90), (0.75, 0.97), (0.75, 0.5)):
        gpu = GpuStats(0, "", 16 * GIB, used_bytes=level(memory * 16 * GIB), loop_utilization=level(2 * busy))
        runs[f"GPU {busy}, {memory}"] = replace(plain, machine=MachineStats(samples=10, gpus=(gpu,)))
    for kernel in ("flash_attention", "cudnn_attention", "efficient_attention"):
        runs[kernel] = replace(plain, throughput=Throughput(10.0, attention=kernel))
    for device_s in (0.0005, 0.002):
        on_device = {"data_transfer": {"device_count": 100, "device_total_s": 100 * device_s}}
        runs[f"transfer {device_s}"] = run_with(plain, sections=on_device)
    for overlap in (0.51, 0.5, None):
        runs[f"overlap {overlap}"] = replace(plain, gradient_sync=GradientSyncStats(10, 10, 0.003, overlap))
    uneven = snapshot_of({"forward_pass": 0.375, "optimizer_step": 0.25}, std_s=0.05)
    return {
        **{name: [tuple(each) for each in checklist(run) if each.measured] for name, run in runs.items()},
        "in columns": checklist_lines(uneven, Layout(width=120)),
        "with the target below": checklist_lines(uneven, Layout(width=70)),
    }


def data() -> dict[str, Any]:
    gpu = GpuStats(0, "T4", used_bytes=Level(1.0, 2.0, 3.0))
    full = Snapshot(
        machine=MachineStats(samples=2, cores=1.5, gpus=(gpu,), ram_growth=Growth(5.0, 0.01, 9, 8.0)),
        throughput=Throughput(2.0, samples_per_s=64.0),
        health=Health(dropped=2, disabled=("console",), overhead_s=0.5, notes=("a note",)),
    )
    return {"empty": as_data(Snapshot(), []), "machine, throughput and health": as_data(full, [])}


def hangs() -> dict[str, Any]:
    gather = "torch/distributed/distributed_c10d.py:3 all_reduce"
    queue = ("torch/utils/data/dataloader.py:5 _MultiProcessingDataLoaderIter._try_get_data", "queue.py:6 Queue.get")

    def at(rank: int, section: str = "backward_pass", since_s: float = 60.0, *threads: ThreadStack) -> RankStacks:
        return stacks_of(rank, training_at("train.py:88 train", section=section, since_s=since_s), *threads)

    def loading(rank: int) -> RankStacks:
        thread = training_at("data.py:41 __getitem__", section="data_loading", since_s=58.0)
        return stacks_of(rank, thread, host="node1")

    meeting = [stacks_of(rank, training_at("train.py:5 meet", gather)) for rank in (0, 1)]
    alone = stacks_of(0, training_at("train.py:5 main", *queue, section="data_loading"))
    places = [stacks_of(rank, training_at(f"train.py:{rank} train")) for rank in range(9)]
    helper = ThreadStack("pin_memory", tuple(frame(f"threading.py:{i} wait", is_users=False) for i in range(9)))
    equal = [at(rank, "backward_pass", 60.0 + rank, helper) for rank in (0, 1)]
    stacks = render_stacks([*equal, loading(2)], 4, ["Rank 3 has ended (process 103 on node1)"], ASKED_NS / 1e9 + 30)
    frames = {
        "subprocess.py:1 Popen.wait": "",
        "threading.py:7 Event.wait": "",
        "threading.py:7 Thread.run": "lib/a.py:3 compute",  # every thread runs that
        "mythreading.py:7 wait": "",
        "torch/nn/linear.py:3 forward": "",
        "socket.py:7 SocketIO.readinto": "",
    }
    above = ThreadStack("x", (frame("threading.py:3 wait", is_users=False), frame("train.py:9 work")))
    return {
        "ranks that are elsewhere come first, also where graphs are replayed": where_text(
            [at(0, "graph_replay"), at(1, "graph_replay"), loading(2)], False
        ),
        "those in a collective come last, even if they are few": where_text([meeting[0], *map(loading, (1, 2))], False),
        "all are in a collective": where_text(meeting, is_alone=False),
        "a training of one rank": where_text([alone], is_alone=True),
        "many places are cut and counted": where_text(places, is_alone=False),
        "what a thread waits for": [
            f"{first}: {waits_for(training_at('train.py:88 train', *filter(None, (first, second))))}"
            for first, second in frames.items()
        ],
        "a frame above the user's line does not wait": waits_for(above),
        "a training thread that has ended": where_text([stacks_of(0, ThreadStack("other", ()))], is_alone=True),
        "stacks of equal ranks are printed once": re.sub(r"at 20.*?,", "at TIME,", stacks),
        "stacks of one rank": re.sub(r"at 20.*", "at TIME", render_stacks([alone], 1, [], ASKED_NS / 1e9)),
    }


def watching() -> dict[str, Any]:
    run = snapshot_of({"data_loading": 0.4, "forward_pass": 0.5})
    slow = finding(message="40% of step time is spent waiting", saving_s=4.0, fix="use workers")

    def seen(snapshot: Snapshot = run, state: str = "running", **options: Any) -> WatchedRun:
        return WatchedRun(snapshot, options.pop("findings", ()), "runs/x", "train.py", state, **options)

    def rank(number: int, **options: Any) -> RankStats:
        return RankStats(RankId(number, 2, "node0"), 400, **options)

    def epochs(*complete: bool) -> Snapshot:
        made = [replace(EPOCH, number=number, is_complete=is_one) for number, is_one in enumerate(complete, 1)]
        return replace(run, epochs=tuple(made))

    both = (rank(0, step_s=0.1, work_s=0.05, work_over_best=1.0), rank(1, work_s=0.09, work_over_best=1.8))
    shares = {"data_loading": 0.45, "forward_pass": 0.5}
    full = seen(
        replace(run, ranks=AllRanksStats(2, both)), findings=[slow], recent_step_s=0.125, recent_shares=shares,
        over_steps=[(1, 1, 0.1), (1, 2, 0.2)],
    )  # fmt: skip
    events = [f"event {number}" for number in range(20)]
    low = seen(recent_step_s=0.1)
    log, others = EventLog(), EventLog()
    history = (
        seen(),
        seen(),
        seen(findings=[slow]),
        seen(),
        seen(epochs(True, False)),
        seen(epochs(True, True, True)),
        seen(epochs(True, True, True), captures=["captures/a"]),
    )
    lost = AllRanksStats(2, (rank(0), rank(1, ended_by="SIGTERM")), unresponsive=(0,))
    off = Health(disabled=("machine monitor (no /proc)",))
    ends = (
        seen(),
        seen(replace(run, ranks=lost, health=off)),
        seen(attempt=1),
        seen(replace(run, ended_by="KeyboardInterrupt"), "ended", attempt=1),
    )
    many = [(2, n, 0.2 if n < 120 else 0.4) for n in range(240)]
    return {
        "state, last steps, findings, ranks and events": watch_lines(full, ["an event"], FILE),
        "a low terminal keeps the begin and the last events": watch_lines(low, events, FILE, height=16),
        "how old the figures are of a run that goes on": [
            watch_lines(seen(state=state, written_s_ago=age_s), [], FILE)[0]
            for state, age_s in (("running", 0.2), ("running", 3.2), ("unknown", 95.0), ("ended", 95.0))
        ],
        "the line of step times": [
            sparkline(points, Layout(is_unicode=True)) for points in ([], [(1, 1, 0.1), (1, 2, 0.1)], many)
        ],
        "each event is said once": [log.update(each) for each in history],
        "ranks, parts and attempts are events": [others.update(each) for each in ends],
        "a line of progress fits": [
            progress_line(replace(full, written_s_ago=age_s), width) for width, age_s in ((80, 7.0), (50, 0.2))
        ],
    }


def exported() -> dict[str, Any]:
    ms = 1_000_000

    def stretch(begin: int, end: int, steps: Any, first: int = 0, outside: int = 0, **more: Any) -> Stretch:
        times = array("q", (each * ms for each in steps))
        begins = {name: more[name] * ms if name in more else None for name in ("loop_begin_ns", "epoch_begin_ns")}
        blocks = {"forward_pass": tuple(times)}
        levels = more.get("levels", {})
        return Stretch(begin * ms, end * ms, first, times, (), 1, blocks, outside * ms, levels, **begins)

    def series(*stretches: Stretch, rank: int = 0, host: str = "node", wall: int = 0, **more: Any) -> RankSeries:
        details = {"epochs": (), "parents": {}, "lines_ns": {}, **more}
        return RankSeries(rank, host, wall * ms, 0, stretches, **details)

    epoch, loop = {"epoch_begin_ns": 100}, {"loop_begin_ns": 20}
    placed = {
        "follow the begin of their epoch": [stretch(100, 190, [30, 40], **epoch)],
        "follow the begin of the loop over stretches": [stretch(0, 100, [30, 40], **loop), stretch(100, 200, [50], 2)],
        "are uncertain by the time outside steps": [stretch(100, 195, [30, 40], outside=10, **epoch)],
        "are bounded by the ends of the stretch": [stretch(100, 200, [40, 50])],
        "that may be anywhere are not placed": [stretch(0, 10_000, [30, 40])],
        "of a journal that contradicts itself are not placed": [stretch(100, 110, [30, 40], **epoch)],
    }
    lanes = (
        Lane("MainThread", ("attention", "forward_pass"), (3, 3), (6, 9)),
        Lane("reader", ("prefetch",), (-1_000,), (5,)),
    )
    recorded = StepLanes(7, "slow", 10_000_000, 10_010_000, 9_000, 3, lanes)
    levels = {"cpu_host": 0.5, "ram_process_bytes": 2**21}
    both = [
        series(stretch(0, 100, [30], loop_begin_ns=0), wall=5_000),
        series(stretch(0, 100, [30], loop_begin_ns=0), rank=1, wall=5_007),
    ]
    machine = series(stretch(0, 100, [30, 50], levels=levels), epochs=(EpochSpan(3, 10 * ms, None),))
    line = Location("train.py", 7, "loss", "item", "lib/a.py:3 f > lib/b.py:4 g", "callback on_step_end")
    sampled = {
        "lines_ns": {"validation_epoch/forward_pass": {line: 2000, None: 1000}, "b": {NOT_SAMPLED: 3000}},
        "parents": {"validation_epoch/forward_pass": "validation_epoch"},
    }
    hostile = series(lines_ns={"a;b 3": {Location("x;y.py", 1, "f"): 4000}})
    ranks = [series(**sampled), series(rank=1, **sampled)]
    return {
        **{f"steps {what}": [str(tuple(each)) for each in placed_steps(series(*of))] for what, of in placed.items()},
        "ranks are processes placed by wall clocks": timeline_trace(both),
        "sections and machine are counters, epochs are slices": timeline_trace([machine]),
        "recorded steps have their spans on the lanes of their threads": timeline_trace([series(recorded=(recorded,))]),
        "names of any text are JSON": timeline_trace([series(host="\ud800 \x1b[31m \u202e")]),
        "collapsed stacks escape what separates": collapsed([hostile]),
        "collapsed stacks of ranks": collapsed(ranks),
        "speedscope has a profile per rank": speedscope(ranks, "train.py"),
    }


GROUPS = (first_screens, verdicts, reports, source_lines, ranks, loaders, machine, device_time)
MORE = (checks, data, hangs, watching, exported)
FOLDER = Path(__file__).parents[1] / "golden" / "reports"


def shown(value: Any) -> str:
    """Return a text as it is, lines of a list one below the other, and data as JSON."""
    if isinstance(value, list) and not any(isinstance(each, dict) for each in value):
        return "\n".join(shown(each) for each in value) or "(nothing)"
    return value if isinstance(value, str) else json.dumps(value, allow_nan=False)


@pytest.mark.parametrize("group", GROUPS + MORE, ids=lambda group: group.__name__)
def test_reports_say_it_to_the_letter(group: Callable[[], dict[str, Any]]) -> None:
    texts = [f"##### {name}\n{shown(value)}\n" for name, value in group().items()]
    assert_golden(FOLDER / f"{group.__name__}.txt", "".join(texts))
