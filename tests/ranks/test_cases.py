"""What ranks say of themselves, and what rank 0 makes of it: each case is a claim, its figures are golden files."""

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.ranks.test_summary_builder import NOTHING, RankRun
from tests.support.golden import assert_golden
from tests.support.ranks import MS, buckets, summary_of
from training_profiler.model.location import Location
from training_profiler.model.ranks import GradientSyncTotals, RankId, block_stride
from training_profiler.ranks.comparison import all_ranks_stats, clock_stats, waiting_parts
from training_profiler.ranks.summary import RankSection, RankSummary, RankSyncPoint

SECTIONS = {"data_loading": 1.0, "forward_pass": 10.0, "backward_pass": 15.0, "other": 2.0}


def slow_in(section: str, extra_ms: float, **more: Any) -> list[RankSummary]:
    """Return four ranks in lock-step, where rank 3 takes longer in a section and the others wait for it."""
    return [
        summary_of(
            rank,
            step_ms=31.0 + extra_ms,
            sync_ms=3.0 + (0 if rank == 3 else extra_ms),
            sections={**SECTIONS, section: SECTIONS[section] + (extra_ms if rank == 3 else 0.0)},
            **more,
        )
        for rank in range(4)
    ]


def blocks_of(steps: int, sync_ms: Callable[[int], float]) -> dict[int, list[int]]:
    """Return the complete blocks of a rank with this many steps, from ``sync_ms(step)``."""
    blocks = (steps + 15) // 16
    firsts = [16 * block for block in range(steps // 16) if block % block_stride(blocks) == 0]
    return {first: [round(sync_ms(step) * MS) for step in range(first, first + 16)] for first in firsts}


def stats() -> dict[str, Any]:
    def nested(ms: float) -> dict[str, RankSection]:
        own_ns = round(100 * ms * MS)
        return {
            "forward_pass": RankSection(100, 1000 * MS + own_ns, 1000 * MS + own_ns, 1000 * MS),
            "attention": RankSection(100, own_ns, own_ns, own_ns),
        }

    def on_device(ms: float) -> dict[str, RankSection]:
        ns = round(100 * ms * MS)
        return {"forward_pass": RankSection(100, 100 * MS, 100 * MS, 100 * MS, 100, ns, ns, ns)}

    def waits(own_ms: int, waits_ms: int) -> dict[str, RankSection]:
        own_ns, waits_ns = 100 * own_ms * MS, 100 * waits_ms * MS
        backward = RankSection(100, own_ns + waits_ns, own_ns + waits_ns, own_ns)
        return {"backward_pass": backward, "synchronization": RankSection(100, waits_ns, waits_ns, waits_ns)}

    save, fetch = {"checkpointing": RankSection(4, 2000 * MS)}, {"first_fetch": RankSection(1, 5 * MS)}
    line = {"hottest_lines": {"data_loading": "train.py:31 fetch"}}
    before = {summary.who.rank: summary for summary in slow_in("data_loading", 0.0)}
    after = [
        summary_of(
            rank,
            steps=200,
            number=2,
            step_ms=(31 + 51) / 2,
            sync_ms=(3 + 3 + (0 if rank == 3 else 20)) / 2,
            sections={**SECTIONS, "data_loading": (1 + 1 + (20 if rank == 3 else 0)) / 2},
        )
        for rank in range(4)
    ]
    silent = [summary_of(0), summary_of(1, inside=["backward_pass"]), summary_of(3, is_final=True, ended_by="SIGTERM")]
    slower = summary_of(1, steps=600, sync_ms=2.0, step_times=buckets(*[30.0] * 6, *[45.0] * 6))
    restarted = {1: summary_of(1, who=RankId(1, 2, "a", attempt=0))}
    late = {rank: blocks_of(64, lambda step, rank=rank: 5 if step % 2 == rank else 1) for rank in (0, 1)}

    def named(numbers: int, **more: Any) -> list[RankSummary]:
        return [summary_of(rank, who=RankId(rank, numbers, "localhost", node=rank), **more) for rank in range(numbers)]

    return {
        **{f"the cause is {name}": all_ranks_stats(slow_in(name, 20.0, **line), 4) for name in SECTIONS},
        "synchronization is never the cause": all_ranks_stats(
            [summary_of(one, sync_ms=1.0 + one, sections={"synchronization": 1.0 + one}) for one in range(2)], 2
        ),
        "a nested section can be the cause": all_ranks_stats(
            [summary_of(0, others=nested(5.0), sync_ms=10.0), summary_of(1, others=nested(12.0), sync_ms=3.0)], 2
        ),
        "without known synchronization there is no work": all_ranks_stats(
            slow_in("backward_pass", 20.0, knows_sync=False), 4
        ),
        "work between steps is per span and names ranks without it": all_ranks_stats(
            [summary_of(one, sections=SECTIONS, others=save if one == 0 else {}) for one in range(3)], 3
        ),
        "device times are used if all ranks have them": all_ranks_stats(
            [summary_of(0, others=on_device(10), sync_ms=8), summary_of(1, others=on_device(15))], 2
        ),
        "else those of the host": all_ranks_stats(
            [summary_of(0, others=on_device(10)), summary_of(1, sections={"forward_pass": 1.5})], 2
        ),
        "a waiting rank is not slowest in the backward pass": all_ranks_stats(
            [summary_of(0, others=waits(10, 25)), summary_of(1, others=waits(30, 5))], 2
        ),
        "missing and silent ranks": all_ranks_stats(silent, 4, age_s={0: 0.0, 1: 35.0, 3: 35.0}, silent_after_s=30.0),
        "only the last summary of a rank counts": all_ranks_stats(
            [summary_of(0), summary_of(1, number=2, steps=200), summary_of(1, steps=100)], 2
        ),
        "a rank without a step after warm-up": all_ranks_stats(
            [*slow_in("forward_pass", 5.0)[:3], summary_of(3, steps=2, warmup=2)], 4
        ),
        "hosts are scored against the best": all_ranks_stats(
            [summary_of(one, sync_ms=13.0 if one < 2 else 3.0) for one in range(4)], 4
        ),
        "machines of one name differ by node number": all_ranks_stats(named(2), 2),
        "an interval leaves out earlier steps": all_ranks_stats(after, 4, before=before),
        "a section entered before is not never entered": all_ranks_stats(
            [summary_of(one, steps=200, number=2, others=fetch) for one in (0, 1)],
            2,
            before={0: summary_of(0, others=fetch)},
        ),
        "a rank without new steps": all_ranks_stats(
            [summary_of(0, steps=200), summary_of(1)], 2, before={1: summary_of(1)}
        ),
        "sums of an earlier attempt are not subtracted": all_ranks_stats(
            [summary_of(0), summary_of(1, who=RankId(1, 2, "a", attempt=1))], 2, before=restarted
        ),
        "a rank that became slower has the step": all_ranks_stats([summary_of(0, steps=600), slower], 2),
        "the last rank to arrive does not wait": all_ranks_stats(
            [summary_of(one, sync_ms=ms, blocks=blocks_of(100, lambda _, ms=ms: ms)) for one, ms in ((0, 4), (1, 1))], 2
        ),
        "ranks that are late in turn all wait": all_ranks_stats(
            [summary_of(one, sync_ms=3, blocks=late[one]) for one in (0, 1)], 2
        ),
    }


def waiting() -> dict[str, Any]:
    def of(*blocks: Mapping[int, list[int]], warmup: int = 0, steps: int = 16) -> Any:
        return waiting_parts([summary_of(at, blocks=each, steps=steps) for at, each in enumerate(blocks)], warmup)

    even = {0: [MS] * 16}
    ranks = [summary_of(r, steps=1000, blocks=blocks_of(1000, lambda _, r=r: r + 1)) for r in (0, 1)]
    unknown = summary_of(2, blocks=even, steps=16, knows_sync=False)
    return {
        "steps unknown to one rank are not compared": of({0: [-1] * 4 + [2 * MS] * 12}, even),
        "warm-up is not compared": of({0: [900 * MS] * 3 + [2 * MS] * 13}, even, warmup=3),
        "another rank has ended": waiting_parts([*ranks, summary_of(2, steps=40, blocks=blocks_of(40, lambda _: 1))]),
        "a block missing from a rank is not compared": of({0: [MS] * 16, 16: [MS] * 16}, {16: [MS] * 16}, steps=100),
        "a single rank": of(even),
        "no blocks": of({}, {}),
        "too few steps": of({0: [-1] * 9 + [MS] * 7}, even),
        "ranks with unknown synchronization are left out": waiting_parts(
            [*(summary_of(at, blocks=even, steps=16) for at in (0, 1)), unknown]
        ),
    }


def clocks() -> dict[str, Any]:
    def on(host: str, rank: int, *meetings: tuple[str, int, int]) -> RankSummary:
        return summary_of(rank, who=RankId(rank, 4, host), sync_points=[RankSyncPoint(*one) for one in meetings])

    first, second = ("all:0", 100, 200), ("all:1", 300, 340)
    runs = {
        "one machine has one clock": [on("a", 0, first), on("a", 1, first)],
        "each meeting narrows the offset": [
            on("a", 0, first, second),
            on("b", 1, ("all:0", 1100, 1200), ("all:1", 1310, 1350)),
        ],
        "all ranks of a machine narrow it": [
            on("a", 0, first),
            on("b", 1, ("all:0", 1100, 1200)),
            on("b", 2, ("all:0", 1150, 1160)),
        ],
        "a clock that was set is not aligned": [on("a", 0, first, second), on("b", 1, first, ("all:1", 9300, 9400))],
        "nor one without a common meeting": [on("a", 0, first), on("b", 1, first), on("c", 2, ("all:9", 1, 2))],
    }
    return {name: clock_stats(ranks) for name, ranks in runs.items()}


def run_of(steps: int, synced: GradientSyncTotals = NOTHING, of_steps: Any = (), **sections_s: float) -> RankRun:
    rank = RankRun()
    for _ in range(steps):
        rank.run.step(**sections_s)
    rank.flush(synced, list(of_steps))
    return rank


def on_device(device_ms: dict[str, int], synced: GradientSyncTotals = NOTHING, steps: int = 20) -> RankRun:
    """Return a run whose host queues work for 1 ms per section; ``attention`` is nested in the forward pass."""
    rank = RankRun()
    for _ in range(steps):
        with rank.run.section("forward_pass"):
            rank.run.clock.advance(0.001)
            rank.run.spend("attention", 0.001)
        rank.run.step(backward_pass=0.001, synchronization=0.001)
        rank.run.clock.advance(0.05)
    rank.run.drain()
    for name, ms in device_ms.items():
        for _ in range(steps):
            rank.run.accumulator.add_device_time(rank.run.names.id_of(name), ms * MS)
    rank.flush(synced)
    return rank


def sampled(step_s: float, samples: int) -> RankRun:
    rank = RankRun()
    rank.run.step(forward_pass=step_s)
    with rank.run.section("data_loading"):
        for number in range(samples):
            rank.run.sample_line(Location("train.py", 31 if number < 20 else 32, "fetch"))
            rank.run.clock.advance(0.001)
    rank.run.step()
    rank.flush()
    return rank


def summaries() -> dict[str, Any]:
    nested, between, blocks, late, two, beside = RankRun(), RankRun(), RankRun(), RankRun(), RankRun(), RankRun()
    for step in range(33):
        with nested.run.section("forward_pass"):
            nested.run.clock.advance(1.0 if step == 0 else 0.002)
            nested.run.spend("attention", 0.003)
        nested.run.clock.advance(0.001)
        nested.run.step(synchronization=0.004)
        between.run.step(forward_pass=0.01)
        between.run.spend("checkpointing", 0.5)
        blocks.run.step(forward_pass=0.01, synchronization=0.001 * (step + 1))
        if step % 5 == 1:
            blocks.flush()
    for rank in (nested, between, blocks):
        rank.flush()
    for _ in range(16):
        late.run.step(backward_pass=0.01, synchronization=0.001)
    late.flush(GradientSyncTotals(15, 15, 30 * MS, 0), [(step, 2 * MS) for step in range(15)])
    early = late.summary().blocks
    late.flush(GradientSyncTotals(1, 1, 2 * MS, 0), [(15, 2 * MS)])
    for ms in (10, 20):
        for _ in range(5):
            two.run.step(forward_pass=ms / 1000, synchronization=0.001)
        two.flush()
    for synced in (NOTHING, GradientSyncTotals(1, 1, 3 * MS, MS, is_on_host=False), NOTHING):
        if synced == NOTHING:
            beside.run.step(forward_pass=0.01)
        beside.flush(synced)

    means = RankRun()
    means.flush(GradientSyncTotals(10, 5, 40 * MS, 10 * MS))
    means.flush(GradientSyncTotals(10, 5, 40 * MS, 30 * MS))
    some = [(step, 2 * MS) for step in range(16) if step != 7]
    by_device = GradientSyncTotals(20, 2, 20 * 3 * MS, 20 * MS, is_on_host=False)
    exposed = GradientSyncTotals(20, 2, 20 * 6 * MS, 20 * MS, is_on_host=False)
    whole = {"forward_pass": 10, "attention": 4, "backward_pass": 20, "synchronization": 3}
    runs = {
        "sections with and without nested ones, after warm-up": nested,
        "work between steps has spans and total": between,
        "blocks hold single steps and continue over flushes": blocks,
        "late synchronization of DDP is added to its step": late,
        "a step without it is unknown and not zero": run_of(
            16, GradientSyncTotals(15, 15, 30 * MS, 0), some, backward_pass=0.01
        ),
        "without communication synchronization is unknown": run_of(12, forward_pass=0.01),
        "untimed synchronization of DDP is unknown": run_of(
            12, GradientSyncTotals(exchanges=12), forward_pass=0.01, synchronization=0.001
        ),
        "buckets hold steps and their synchronization": two,
        "that of a flush without steps counts for the next": beside,
        "a hottest line needs enough samples": sampled(0.01, 29),
        "and has them": sampled(0.01, 30),
        "a section with little time has none": sampled(10.0, 40),
        "synchronization on the device counts": run_of(20, by_device, backward_pass=0.01),
        "device time beside host time": on_device(whole),
        "timed on the host only it is unknown on a device": on_device({"forward_pass": 10, "backward_pass": 20}),
        "exposed synchronization leaves the backward pass": on_device({"backward_pass": 20}, exposed),
    }
    return {
        **{name: rank.summary().to_data() for name, rank in runs.items()},
        "late synchronization is known after the next step": early,
        "means of gradient synchronization": [means.builder.gradient_sync_stats(), means.summary().to_data()],
    }


def plain(value: Any) -> Any:
    """Return data without what is not known, its numbers to six digits."""
    if is_dataclass(value) and not isinstance(value, type):
        value = asdict(value)
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if isinstance(value, Mapping):
        return {str(key): plain(each) for key, each in value.items() if each not in (None, "", 0, (), [], {})}
    return [plain(each) for each in value] if isinstance(value, list | tuple) else value


@pytest.mark.parametrize("group", [stats, waiting, clocks, summaries], ids=lambda group: group.__name__)
def test_figures_of_ranks_are_those_of_their_cases(group: Callable[[], dict[str, Any]]) -> None:
    texts = [f"##### {name}\n{json.dumps(plain(value))}\n" for name, value in group().items()]
    folder = Path(__file__).parents[1] / "golden" / "ranks"
    assert_golden(folder / f"{group.__name__}.txt", "".join(texts))
