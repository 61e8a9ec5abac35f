"""Cost of sending rank summaries to rank 0: ``python -m benchmarks.ranks_store [--ranks N]``.

One process stands in for all ranks, on a real TCPStore, with summaries of 15 sections and every list at its limit. It
measures the training thread's time per summary, its size, and the work of the server and of rank 0. The costs for other
numbers of ranks follow: they are linear, and the interval between summaries grows with the number of ranks.
"""

import argparse
import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import msgspec
from torch.distributed import TCPStore

from benchmarks.figures import Figure, print_figures, print_table
from training_profiler.base.sections import SectionNames
from training_profiler.base.units import NS_PER_S, NS_PER_US
from training_profiler.model.ranks import BLOCK_STEPS, MOST_BLOCKS, RankId
from training_profiler.ranks.channel import RankChannel
from training_profiler.ranks.exchange import AHEAD_A_SECOND, AT_A_REPORT
from training_profiler.ranks.identity import Rank
from training_profiler.ranks.message import Heartbeat, Message
from training_profiler.ranks.stores import connect
from training_profiler.ranks.summary import (
    MOST_BUCKETS,
    RankSection,
    RankSummary,
    RankSyncPoint,
    StepTimeBucket,
    rank_summary_from_data,
)
from training_profiler.storage.journal import Journal

SECTIONS = 15
MEETINGS = 64
SUMMARIES = 200
MOST_PUBLISH = 0.1  # % of the training thread's time, at the shortest interval
MOST_CPU = 0.5  # % of one core, rank 0's thread
MOST_SERVER = 5_000_000  # bytes a second in, or out


def run(ranks: int = 1024) -> list[Figure]:
    """Measure, print and return the results."""
    data = msgspec.json.encode(_sums(1).to_data())
    publish_us = _publish_us()
    server = TCPStore("127.0.0.1", 0, 1, True, wait_for_workers=False)
    set_us, bytes_in = _filled(server, ranks)
    read_ms, cpu_ms = _read(server, ranks)
    decode_ms = _decode_ms(data, ranks)
    print(f"Summaries of {len(data):,} bytes, {len(data) // SECTIONS} a section; {ranks:,} ranks on one TCPStore\n")
    print_table(
        ["what", "measured"],
        [
            ["the training thread publishes (data, JSON, journal, slot)", f"{publish_us:.0f} us"],
            ["a rank's thread sends", f"{set_us:.0f} us"],
            ["rank 0's thread reads all", f"{read_ms:.1f} ms, {cpu_ms:.1f} ms of CPU"],
            ["and decodes all", f"{decode_ms:.1f} ms of CPU"],
        ],
    )
    rows = [_row(count, len(data), cpu_ms / ranks, decode_ms / ranks) for count in (2, 1024, 16384)]
    headers = [
        "ranks",
        "interval",
        "sets/s",
        "kB/s in",
        "kB/s out",
        "rank 0's thread, a second",
        "a report",
        "the last one",
    ]
    print_table(headers, rows)
    every_s = max(1.0, ranks / 100)
    ahead = min((ranks - 1) / every_s, AHEAD_A_SECOND)
    cpu_percent = (cpu_ms / every_s + ahead * decode_ms / ranks) / 10
    stats = [
        Figure("ranks: publishing once a second, of the training thread", publish_us / 1e4, MOST_PUBLISH, "%", 4),
        Figure(
            f"ranks: rank 0's thread, {ranks:,} ranks, of one core",
            cpu_percent,
            MOST_CPU,
            "%",
            2,
        ),
        Figure(f"ranks: bytes a second into the store, {ranks:,} ranks", bytes_in / every_s, MOST_SERVER, "B/s"),
    ]
    print_figures(stats)
    return stats


def _row(count: int, size: int, read_ms: float, decode_ms: float) -> list[str]:
    """Return the load of ``count`` ranks per second, from the times of one summary."""
    every_s = max(1.0, count / 100)
    a_second = (count - 1) / every_s
    rate = f"{a_second * size / 1000:,.0f}"
    cpu_ms = a_second * read_ms + min(a_second, AHEAD_A_SECOND) * decode_ms
    report_ms = min(count - 1, AT_A_REPORT) * decode_ms
    times = f"{cpu_ms:.1f} ms", f"{report_ms:.1f} ms", f"{(count - 1) * decode_ms:,.0f} ms"
    return [f"{count:,}", f"{every_s:.0f} s", f"{a_second:.0f}", rate, rate, *times]


def _sums(rank: int) -> RankSummary:
    names = [f"a_section_of_usual_name_{number}" for number in range(SECTIONS)]
    now_ns = time.time_ns()
    return RankSummary(
        RankId(rank, 1024, "worker-node-17.cluster", rank // 8, rank % 8),
        number=1000,
        begin_ns=now_ns - 3600 * NS_PER_S,
        sent_ns=now_ns,
        steps=123_456,
        settled_steps=123_450,
        settled_ns=3_500_000_000_000,
        sync_ns=310_123_456_789,
        sections={
            name: RankSection(123_456, 231_123_456_789, 231_123_456_789, 131_123_456_789, 123_456, 1, 1)
            for name in names
        },
        exchanges=123_456,
        exchange_ns=310_123_456_789,
        exchange_hidden_ns=110_123_456_789,
        step_times=[StepTimeBucket(4096, 110_123_456_789, 10_123_456_789)] * MOST_BUCKETS,
        blocks={16 * 1024 * block: [2_123_456 + block] * BLOCK_STEPS for block in range(MOST_BLOCKS)},
        hottest_lines=dict.fromkeys(names[:8], "trainer.py:123 Trainer.train_step"),
        sync_points=[RankSyncPoint(f"ddp0:{1024 * number}", now_ns, now_ns + 1_000_000) for number in range(MEETINGS)],
        inside=("backward_pass",),
    )


def _publish_us() -> float:
    """Return the training thread's time to publish a summary, as in ``Pipeline``."""
    channel = RankChannel(Rank(RankId(1, 2)), 0.0, False, lambda _, work: work())
    sums, took_ns = _sums(1), []
    with tempfile.TemporaryDirectory() as folder:
        journal = Journal(Path(folder, "rank1.jsonl"), 1, SectionNames(), 0, None)
        for _ in range(SUMMARIES):
            begin_ns = time.perf_counter_ns()
            data = sums.to_data()
            journal.append(journal.lines.rank(data))
            channel.outbox.put(msgspec.json.encode(data))
            took_ns.append(time.perf_counter_ns() - begin_ns)
            time.sleep(0.001)  # else everything would stay in the CPU's caches
    return median(took_ns) / NS_PER_US


def _filled(server: TCPStore, ranks: int) -> tuple[float, int]:
    """Send the summary of every rank; return the time of one in us, and the bytes of all."""
    store, size, took_ns = connect(server, "0.0"), 0, []
    for rank in range(1, ranks):
        data = msgspec.json.encode(_sums(rank).to_data())
        begin_ns = time.perf_counter_ns()
        packed = Message(
            Heartbeat(123_456, ("backward_pass",), 0.1, "worker-node-17.cluster"), data, sequence=rank
        ).pack()
        store.send(rank, packed)
        took_ns.append(time.perf_counter_ns() - begin_ns)
        size += len(packed)
    return median(took_ns) / NS_PER_US, size


def _read(server: TCPStore, ranks: int) -> tuple[float, float]:
    """Return rank 0's time to read all of them: wall time and CPU time in ms."""
    channel = RankChannel(Rank(RankId(0, ranks)), 0.0, False, lambda _, work: work())
    channel.stores._find_store, channel.stores._mark = lambda: server, lambda: True
    channel.stores.connect()
    channel.inbox.read(is_now=True)  # the first read checks every key
    assert len(channel.inbox.received()) == ranks - 1
    return _median_ms(lambda: channel.inbox.read(is_now=True), time.perf_counter_ns), _median_ms(
        lambda: channel.inbox.read(is_now=True), time.thread_time_ns
    )


def _decode_ms(data: bytes, ranks: int) -> float:
    def decode() -> None:
        for _ in range(ranks - 1):
            rank_summary_from_data(json.loads(data))

    return _median_ms(decode, time.thread_time_ns)


def _median_ms(work: Callable[[], None], clock: Callable[[], int], times: int = 5) -> float:
    took_ns = []
    for _ in range(times):
        begin_ns = clock()
        work()
        took_ns.append(clock() - begin_ns)
    return median(took_ns) / 1e6


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=1024)
    run(parser.parse_args().ranks)
