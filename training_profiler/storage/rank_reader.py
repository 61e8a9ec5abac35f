"""Reads the summaries of a run's ranks from the ends of their journals."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from training_profiler.base.units import NS_PER_S, duration_text
from training_profiler.model.bounds import MOST_SUM
from training_profiler.ranks.comparison import all_ranks_stats
from training_profiler.ranks.message import outdated_after_s
from training_profiler.ranks.summary import RankSummary, gradient_sync_stats, rank_summary_from_data
from training_profiler.snapshot.ranks import AllRanksStats, GradientSyncStats
from training_profiler.storage.journal_discovery import (
    NO_JOURNAL,
    End,
    JournalFile,
    enumerated,
    find_journals,
    read_end,
    select_attempt,
)
from training_profiler.storage.run_folder import read_meta

MOST_MESSAGES: Final = 8
MOST_RANKS: Final = 1_000_000  # a larger number is not a world size, and would take memory


@dataclass(frozen=True, slots=True)
class ReceivedRanks:
    """The readable summaries of all ranks of one attempt."""

    summaries: tuple[RankSummary, ...]  # by rank
    world_size: int
    left_out: tuple[str, ...]  # messages on data that could not be read
    age_s: Mapping[int, float]  # age of each rank's summary relative to the latest one, by the ranks' own clocks
    silent_after_s: float

    def stats(self) -> AllRanksStats | None:
        """Return the stats of all ranks; None for a single rank."""
        stats = all_ranks_stats(self.summaries, self.world_size, age_s=self.age_s, silent_after_s=self.silent_after_s)
        return None if stats is None else replace(stats, left_out=(*stats.left_out, *self.left_out))

    def exchange(self, rank: int) -> GradientSyncStats | None:
        """Return the stats of DDP's gradient sync on a rank; None if unknown."""
        for each in self.summaries:
            if each.who.rank == rank:
                return gradient_sync_stats(each.exchanges, each.sampled, each.exchange_ns, each.exchange_hidden_ns)
        return None


def read_ranks(folder: Path, attempt: int | None = None) -> ReceivedRanks:
    """Return the summaries of the ranks of the run in ``folder``, by default of the last attempt.

    Raises:
        RunFolderError: there was no such attempt.
    """
    found = select_attempt(folder, find_journals(folder), attempt)
    return received_ranks(found.of_attempt, found.left_out)


def received_ranks(journals: Sequence[JournalFile], left_out: Sequence[str] = ()) -> ReceivedRanks:
    """Return the summaries in the journals of one attempt; ``left_out`` are messages from before."""
    by_rank: dict[int, RankSummary] = {}
    messages, without, torn = list(left_out), [], []
    ended, unended = 0, []
    for journal in journals:
        try:
            is_read = journal.problem in ("", NO_JOURNAL)
            end = read_end(journal.path, "rank", _summary) if is_read else End[RankSummary](None, False, False)
        except OSError as error:
            messages.append(f"left out: {journal.shown} cannot be read ({error.strerror})")
            continue
        summary = end.value
        if summary is not None and summary.who.rank not in by_rank:
            by_rank[summary.who.rank] = summary
            torn += [journal.shown] * end.is_torn
        elif journal.problem:
            messages.append(f"left out: {journal.shown} {journal.problem}")
            continue
        elif summary is None and journal.rank != 0:  # a single rank sends no summary
            without.append(journal.shown)
        ended += end.has_end
        # A journal with an incomplete last line may be a copy made during the run.
        unended += [journal] * (not end.has_end and not end.is_torn)
    if ended:
        messages += _unended(unended, by_rank)
    if without:
        messages.append(f"no data of ranks that ended before they sent any: {enumerated(without)}")
    if torn:
        messages.append(f"the last line is torn, the one before it was read: {enumerated(torn)}")
    summaries = tuple(by_rank[rank] for rank in sorted(by_rank))
    sizes = [summary.who.world_size for summary in summaries] + [_world_size(journal) for journal in journals]
    world_size = max(sizes, default=1)
    settings = read_meta(journals[0].path.parent).get("settings") if journals else None
    flush_s = settings.get("flush_s") if isinstance(settings, dict) else None
    flush_s = float(flush_s) if isinstance(flush_s, (int, float)) and 0 <= flush_s <= MOST_SUM else 0.0
    more = len(messages) - MOST_MESSAGES
    messages[MOST_MESSAGES:] = [f"{more} more files left out"] if more > 0 else []
    return ReceivedRanks(
        summaries, world_size, tuple(messages), _ages(summaries), outdated_after_s(flush_s, world_size)
    )


def _ages(summaries: Sequence[RankSummary]) -> dict[int, float]:
    """Return how much older each rank's summary is than the latest one, in s.

    Clocks of machines may differ by an hour, and ranks may begin one after the other. So a summary is as old as both
    the clocks and the ranks' own run times say.
    """
    last_ns = max((summary.sent_ns for summary in summaries), default=0)
    longest_ns = max((summary.sent_ns - summary.begin_ns for summary in summaries), default=0)
    return {
        summary.who.rank: min(last_ns - summary.sent_ns, longest_ns - (summary.sent_ns - summary.begin_ns)) / NS_PER_S
        for summary in summaries
    }


def _unended(journals: Sequence[JournalFile], summaries: Mapping[int, RankSummary]) -> list[str]:
    """Return messages on ranks whose journal has no end while others' have one: which, when, and where they were."""
    by_state: dict[bool | None, list[str]] = {False: [], True: [], None: []}
    for journal in journals:
        by_state[journal.is_running].append(
            "?" if journal.rank is None else f"{journal.rank}{_last_place(summaries, journal.rank)}"
        )
    states = {False: "killed before the end", True: "still running", None: "killed before the end, or still running"}
    return [
        f"{states[state]}: {'rank' if len(ranks) == 1 else 'ranks'} {enumerated(ranks)}"
        for state, ranks in by_state.items()
        if ranks
    ]


def _last_place(summaries: Mapping[int, RankSummary], rank: int) -> str:
    """Return what a rank's last summary says of it, such as " (last at step 30 in backward_pass, after 12.5 s)"."""
    last = summaries.get(rank)
    if last is None:
        return ""
    inside = f" in {' > '.join(last.inside)}" if last.inside else ""
    return f" (last at step {last.steps}{inside}, after {duration_text((last.sent_ns - last.begin_ns) / NS_PER_S)})"


def _summary(record: dict[str, Any]) -> RankSummary:
    summary = rank_summary_from_data({key: value for key, value in record.items() if key != "kind"})
    who = summary.who
    numbers = (who.rank, who.world_size, who.attempt, summary.sent_ns, summary.begin_ns, summary.steps)
    if not all(type(number) is int for number in numbers) or not 0 <= who.rank < who.world_size <= MOST_RANKS:
        raise ValueError(f"{who} is not a rank")
    return summary


def _world_size(journal: JournalFile) -> int:
    who = (journal.begin or {}).get("who")
    size = who.get("world_size") if isinstance(who, dict) else None
    return size if type(size) is int and 1 <= size <= MOST_RANKS else 1
