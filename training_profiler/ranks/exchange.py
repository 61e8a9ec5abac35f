"""Publishes the summary of this rank, and computes the statistics of all ranks."""

import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Any, Final

import msgspec

from training_profiler.aggregation.accumulator import Accumulator
from training_profiler.aggregation.totals import Totals
from training_profiler.base.sections import SectionNames
from training_profiler.base.units import NS_PER_S
from training_profiler.instrumentation.ddp_statistics import GradientSync, SyncPoints
from training_profiler.model.ranks import AllRanksStats, GradientSyncStats, GradientSyncTotals, RankId
from training_profiler.ranks.channel import PART, RankChannel
from training_profiler.ranks.comparison import all_ranks_stats
from training_profiler.ranks.identity import Rank
from training_profiler.ranks.message import ReceivedMessage, unresponsive_after_s
from training_profiler.ranks.summary import RankSummary, RankSummaryBuilder, RankSyncPoint, rank_summary_from_data
from training_profiler.safety.fault_guard import Guard
from training_profiler.settings.settings import Settings

STEPS_AHEAD: Final = 2  # a rank publishes in the first, rank 0 reads in the second
MIN_STEPS: Final = 8  # of a rank since the last report; with fewer, its stats cover all its steps
# Decoding one rank's summary takes 60 to 130 us (benchmarks/ranks_store.py).
AHEAD_A_SECOND: Final = 20  # ranks decoded beside the training; holds rank 0's GIL for 0.3 % of the time
AT_A_REPORT: Final = 128  # ranks decoded by a periodic report; it uses earlier summaries of the others
_GARBLED: Final = (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError)


@dataclass(eq=False)
class RankExchange:
    """Publishes this rank's summary and reads those of the other ranks. Does nothing in a run of one rank."""

    rank: Rank
    channel: RankChannel  # carries summaries between ranks
    names: SectionNames
    clock: Callable[[], int]  # the recorder's
    guard: Guard
    _: KW_ONLY
    gradient_sync: GradientSync | None = None  # DDP's statistics; None if DDP is not observed
    sync_points: SyncPoints | None = None  # barriers of all ranks; None if they are not observed
    trained_samples: Callable[[], Any] = lambda: None  # returns fingerprints of them, see ``RankSummary``
    begin_ns: int  # begin of the run, by ``clock``
    wall_clock: Callable[[], int] = time.time_ns

    def __post_init__(self) -> None:
        self._summary_builder, self._has_sums = RankSummaryBuilder(self.names), False
        self._begin_wall_ns = self.wall_clock() - (self.clock() - self.begin_ns)
        self._next_publish_ns = 0
        self._starting = threading.Lock()
        self._ending: dict[str, Any] = {}
        self._final: AllRanksStats | None = None  # of the run, once it is over
        self._now: dict[int, RankSummary] = {}  # the summary of each rank when stats were last computed,
        self._before: dict[int, RankSummary] = {}  # and at the last report
        self._read: dict[int, tuple[bytes, RankSummary | None]] = {}  # the data of each rank, and its summary
        self._next_rank = 0  # the rank to decode next
        self._ahead_ns = self.clock()

    def start(self) -> None:
        """Start the channel's thread if there are other ranks; does nothing the second time."""
        if self._starting.acquire(blocking=False):  # else the thread that flushes by time is at it
            try:
                self.guard(PART, self.channel.start)
            finally:
                self._starting.release()

    def reconfigure(self, settings: Settings) -> None:
        """Go on with other settings."""
        self._summary_builder.reconfigure(settings.warmup)
        self.channel.reconfigure(settings.rank_wait_s)

    @property
    def run_name(self) -> str | None:
        """Name of the run's folder as rank 0 sent it; None until then."""
        return self.channel.inbox.run_name

    def share_folder(self, folder: Path) -> None:
        """Use the run's folder for messages; rank 0 sends its name to the other ranks."""
        if self.rank.is_one_of_many():
            self.channel.stores.use_folder(folder)
            if self.rank.is_primary():
                self.channel.outbox.name_run(folder.name)

    def steps_ahead(self) -> int:
        """Return how many steps before rank 0 this rank publishes, so that rank 0 has its summary when it reports."""
        return STEPS_AHEAD if self.rank.is_one_of_many() and not self.rank.is_primary() else 0

    def drain_gradient_sync(self, accumulator: Accumulator) -> GradientSyncTotals:
        """Attribute DDP's gradient sync since the last flush to synchronization; return it."""
        if self.gradient_sync is None:
            return GradientSyncTotals()
        exchanged = self.gradient_sync.drain()
        accumulator.add_gradient_sync(exchanged)
        return exchanged

    def add(self, totals: Totals, step_ns: list[int], exchanged: GradientSyncTotals) -> None:
        """Add a flush interval. A rank without others has nothing to compare but what DDP measured."""
        if self.rank.is_one_of_many() or exchanged.exchanges:
            self._has_sums = True
            self._summary_builder.add(totals, step_ns, exchanged)

    def due_summary(self, run: Totals, *, inside: tuple[str, ...]) -> RankSummary | None:
        """Return the summary of this rank if one is due; else None."""
        now_ns = self.clock()
        if not self.rank.is_one_of_many() or now_ns < self._next_publish_ns:
            return None
        self._next_publish_ns = now_ns + int(self.channel.stores.every_s * NS_PER_S)
        return self._summary(run, inside)

    def final_summary(self, run: Totals, *, inside: tuple[str, ...], ended_by: str | None) -> RankSummary | None:
        """Return the final summary of this rank; None in a run of one rank."""
        if not self.rank.is_one_of_many():
            return None
        self._ending = {"is_final": True, "ended_by": ended_by}
        return self._summary(run, inside)

    def publish(self, data: Mapping[str, Any], is_final: bool) -> None:
        """Send the data of this rank's summary to rank 0; rank 0 sends none."""
        if not is_final:  # no thread can start at the interpreter's end
            self.start()
        if not self.rank.is_primary():
            self.guard(PART, lambda: self.channel.outbox.put(msgspec.json.encode(data), is_final))

    def close(self) -> None:
        """Send the final summary; rank 0 waits a moment for those of the other ranks."""
        if self.rank.is_one_of_many():
            is_hurried = self._ending.get("ended_by") is not None
            self.guard(PART, lambda: self.channel.close(is_hurried))

    def _summary(self, run: Totals, inside: tuple[str, ...] = ()) -> RankSummary:
        sync = self.gradient_sync
        points = [] if self.sync_points is None else [RankSyncPoint(*kept) for kept in list(self.sync_points.kept)]
        return self._summary_builder.summary(
            self.rank.who,
            run,
            self.names.names,
            begin_ns=self._begin_wall_ns,
            sent_ns=self.wall_clock(),
            sync_points=points,
            trained=self.trained_samples() or msgspec.UNSET,
            searched=sync.searched if sync is not None and sync.searched.searches else msgspec.UNSET,
            inside=inside,
            **self._ending,
        )

    def stats(self, run: Totals, *, of_interval: bool = False) -> AllRanksStats | None:
        """Return stats of every rank that has reported; None for a single-rank run.

        Args:
            run: totals of this rank so far.
            of_interval: cover the steps since ``new_interval`` for each rank that has made enough of them.
        """
        if not self.rank.is_one_of_many() or not self.rank.is_primary():
            return None
        if self._final is not None and not of_interval:
            return self._final
        messages = self.channel.inbox.received()
        if not messages and not self.rank.has_group:  # a program started by a rank inherits only its environment
            return None
        self._now = {0: self._summary(run)}
        left = AT_A_REPORT if of_interval else len(messages)
        for rank in self._in_decoding_order(messages):
            if not self._is_read(rank, messages[rank]) and (left > 0 or rank not in self._read):
                left -= 1
                self._read_one(rank, messages[rank])
            summary = self._latest(rank, messages[rank])
            if summary is not None:
                self._now[rank] = summary
        before = {
            rank: self._before[rank]
            for rank, summary in self._now.items()
            if of_interval and rank in self._before and summary.steps - self._before[rank].steps >= MIN_STEPS
        }
        stats = all_ranks_stats(
            [self._now[rank] for rank in sorted(self._now)],
            self.rank.who.world_size,
            before=before or None,
            age_s={0: 0.0, **{rank: message.age_s for rank, message in messages.items()}},
            silent_after_s=unresponsive_after_s(self.channel.stores.every_s),
        )
        if self._ending and not of_interval:
            self._final = stats
        return stats

    def new_interval(self) -> None:
        """Begin an interval at the summaries of the last stats."""
        self._before = dict(self._now)

    def read_ahead(self, messages: Mapping[int, ReceivedMessage]) -> None:
        """Decode some of the new messages, on the channel's thread, to save the training thread that work."""
        now_ns = self.clock()
        left = int(AHEAD_A_SECOND * min(self.channel.stores.every_s, (now_ns - self._ahead_ns) / NS_PER_S))
        self._ahead_ns = now_ns
        for rank in self._in_decoding_order(messages):
            if left <= 0:
                return
            if not self._is_read(rank, messages[rank]):
                self._read_one(rank, messages[rank])
                self._next_rank = rank + 1
                left -= 1
                time.sleep(0)  # a thread that waits for the GIL goes first

    def _in_decoding_order(self, messages: Mapping[int, ReceivedMessage]) -> list[int]:
        """Return the ranks, beginning after the last decoded rank."""
        return sorted(messages, key=lambda rank: (rank < self._next_rank, rank))

    def _is_read(self, rank: int, message: ReceivedMessage) -> bool:
        return not message.data or (rank in self._read and self._read[rank][0] == message.data)

    def _read_one(self, rank: int, message: ReceivedMessage) -> None:
        summary = None
        with suppress(*_GARBLED):
            decoded = rank_summary_from_data(msgspec.json.decode(message.data))
            summary = decoded if decoded.who.rank == rank else None
        self._read[rank] = message.data, summary

    def _latest(self, rank: int, message: ReceivedMessage) -> RankSummary | None:
        """Return a rank's summary, with the open sections of its latest heartbeat; None if it cannot be decoded."""
        beat = message.heartbeat
        if not message.data:  # only heartbeats so far
            who = RankId(rank, self.rank.who.world_size, beat.host, attempt=self.rank.who.attempt)
            return RankSummary(who, steps=beat.steps, inside=beat.inside)
        _, summary = self._read.get(rank, (b"", None))
        if summary is None or summary.is_final or beat.steps < summary.steps:
            return summary
        return msgspec.structs.replace(summary, inside=beat.inside)

    def notes(self) -> list[str]:
        """Return sentences on messages of other ranks that could not be used."""
        read = self._read.copy()  # the channel's thread adds to it
        garbled = [rank for rank, (_, summary) in read.items() if summary is None]
        notes = self.channel.notes()
        if garbled:
            whose = f"{len(garbled)} of them (first: rank {min(garbled)})"
            notes.append(f"ranks: messages of {whose} are of another version, or garbled")
        return notes

    def gradient_sync_stats(self) -> GradientSyncStats | None:
        """Return the stats of DDP's gradient synchronization on this rank; None without DDP."""
        return self._summary_builder.gradient_sync_stats() if self._has_sums else None
