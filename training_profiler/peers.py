"""The other ranks of this session: what this one tells them, and the figures of what they told."""

import json
from collections.abc import Callable
from typing import Final

from training_profiler.distributed.board import Board
from training_profiler.distributed.rank import Rank
from training_profiler.instrument.exchange import Exchange
from training_profiler.instrument.meetings import Meetings
from training_profiler.rank_figures import ExchangeFigures, RanksFigures
from training_profiler.record.exchange import Exchanged
from training_profiler.record.names import SectionNames
from training_profiler.record.section import Clock
from training_profiler.statistics.accumulator import Accumulator
from training_profiler.statistics.rank_book import RankBook
from training_profiler.statistics.rank_sums import RankSums, rank_sums_from_data
from training_profiler.statistics.ranks import ranks_figures
from training_profiler.statistics.totals import Totals
from training_profiler.units import NS_PER_S

TELL_EVERY_S: Final = 1.0  # at most; where there are over 100 ranks, a hundredth of a second for each


class Peers:
    """Tells and reads; where this is the only rank, it does neither."""

    def __init__(
        self, rank: Rank, board: Board, names: SectionNames, clock: Clock, tell: Callable[[RankSums], None]
    ) -> None:
        self.exchange: Exchange | None = None  # what DDP says, where it was seen being made
        self.meetings: Meetings | None = None
        self._rank, self._board = rank, board
        self._names, self._clock = names, clock
        self._tell = tell
        self._book = RankBook(names)
        self._next_tell_ns = 0
        self._own: RankSums | None = None
        self._before: dict[int, RankSums] = {}  # what was told at the last report

    def adopt(self, warmup_steps: int | None) -> None:
        """Go on with another number of warm-up steps."""
        self._book.warmup_steps = warmup_steps

    def book_exchange(self, accumulator: Accumulator) -> tuple[Exchanged, list[tuple[int, int]]]:
        """Book what DDP exchanged since the last flush as synchronization; return it."""
        if self.exchange is None:
            return Exchanged(), []
        exchanged = self.exchange.take()
        accumulator.add_exchange(exchanged)
        return exchanged, self.exchange.take_steps()

    def add(self, totals: Totals, step_ns: list[int], exchanged: Exchanged, of_steps: list[tuple[int, int]]) -> None:
        """Add a flush interval."""
        self._book.add(totals, step_ns, exchanged, of_steps)

    def tell(
        self, run: Totals, *, inside: tuple[str, ...], is_final: bool = False, ended_by: str | None = None
    ) -> None:
        """Tell the others what this rank has measured so far, where that is due."""
        now_ns = self._clock()
        if not self._rank.is_one_of_many() or (now_ns < self._next_tell_ns and not is_final):
            return
        interval_s = max(TELL_EVERY_S, self._rank.who.world_size / 100)
        self._next_tell_ns = now_ns + int(interval_s * NS_PER_S)
        self._own = self._sums(run, inside, is_final, ended_by)
        self._tell(self._own)

    def _sums(self, run: Totals, inside: tuple[str, ...], is_final: bool, ended_by: str | None) -> RankSums:
        return self._book.sums(
            self._rank.who, run, self._names.names, inside=inside, is_final=is_final, ended_by=ended_by
        )

    def figures(self) -> RanksFigures | None:
        """Return the figures of all ranks, as far as they have told of themselves; None where there is one."""
        if not self._rank.is_one_of_many() or not self._rank.is_primary() or self._own is None:
            return None
        told = self._board.told()
        sums = [self._own, *(rank_sums_from_data(json.loads(one.data)) for one in told.values())]
        heard_s_ago = {rank: one.heard_s_ago for rank, one in told.items()}
        return ranks_figures(sums, self._rank.who.world_size, heard_s_ago=heard_s_ago)

    def exchange_figures(self) -> ExchangeFigures | None:
        """Return the figures of DDP's exchange of gradients on this rank; None without."""
        return self._book.exchange_figures()
