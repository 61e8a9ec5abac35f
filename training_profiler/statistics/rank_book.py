"""Collects what this rank tells the others."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from training_profiler.rank_figures import ExchangeFigures, RankId
from training_profiler.record.exchange import Exchanged
from training_profiler.statistics.rank_sums import Meeting, RankSums
from training_profiler.statistics.totals import Totals


class RankBook:
    """Sums of this rank; only grows."""

    def __init__(self) -> None:
        self._number = 0

    def add(
        self, totals: Totals, step_ns: Sequence[int], exchanged: Exchanged, of_steps: Iterable[tuple[int, int]] = ()
    ) -> None:
        """Add a flush interval, and what DDP exchanged in it; ``of_steps`` are (step, ns exposed) of single ones."""

    def exchange_figures(self) -> ExchangeFigures | None:
        """Return the figures of DDP's exchange of gradients so far; None without any."""
        return None

    def sums(self, who: RankId, run: Totals, names: Mapping[int, str], **rest: Any) -> RankSums:
        """Return what this rank has measured so far; ``rest`` are fields of ``RankSums`` known elsewhere."""
        self._number += 1
        return RankSums(who=who, number=self._number, steps=run.steps.count, **rest)


def meetings(seen: Iterable[tuple[str, int, int]]) -> list[Meeting]:
    """Return meetings as they are told."""
    return [Meeting(*meeting) for meeting in seen]
