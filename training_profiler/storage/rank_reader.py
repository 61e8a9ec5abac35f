"""What the ranks of a run told of themselves, from the ends of their journals."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from training_profiler.errors import RunFolderError
from training_profiler.ranks.comparison import all_ranks_stats
from training_profiler.ranks.liveness import outdated_after_s
from training_profiler.ranks.summary import RankSummary, rank_summary_from_data
from training_profiler.snapshot.ranks import AllRanksStats, GradientSyncStats
from training_profiler.storage.journal_discovery import NO_JOURNAL, Found, choose, find_journals, find_own_folders
from training_profiler.storage.journal_tail import End, read_end
from training_profiler.storage.launch import is_running
from training_profiler.storage.run_lookup import read_meta
from training_profiler.units import NS_PER_S

MOST_SENTENCES: Final = 8
MOST_RANKS: Final = 1_000_000  # a number beyond is no world's size, and would take memory


@dataclass(frozen=True, slots=True)
class ReceivedRanks:
    """What could be read of all ranks of one attempt."""

    sums: tuple[RankSummary, ...]  # by rank
    world_size: int
    left_out: tuple[str, ...]  # sentences on what could not be read
    heard_s_ago: Mapping[int, float]  # before the last that any rank told, by the ranks' own clocks
    silent_after_s: float

    def stats(self) -> AllRanksStats | None:
        """Return the figures of all ranks; None where there is one."""
        stats = all_ranks_stats(
            self.sums, self.world_size, heard_s_ago=self.heard_s_ago, silent_after_s=self.silent_after_s
        )
        return None if stats is None else replace(stats, left_out=(*stats.left_out, *self.left_out))

    def exchange(self, rank: int) -> GradientSyncStats | None:
        """Return the figures of DDP's exchange of gradients on a rank; None where none of it is known."""
        for sums in self.sums:
            if sums.who.rank == rank and sums.exchanges and sums.sampled and sums.exchange_ns:
                hidden_ns = min(sums.exchange_ns, max(0, sums.exchange_hidden_ns))
                return GradientSyncStats(
                    count=sums.exchanges,
                    sampled=sums.sampled,
                    total_s=sums.exchange_ns / sums.exchanges / NS_PER_S,
                    overlap=hidden_ns / sums.exchange_ns,
                    exposed_s=(sums.exchange_ns - hidden_ns) / sums.exchanges / NS_PER_S,
                )
        return None


def read_ranks(folder: Path, attempt: int | None = None) -> ReceivedRanks:
    """Return what the ranks of the run in ``folder`` told in an attempt, by default in the last one.

    Raises:
        RunFolderError: there was no such attempt.
    """
    found = find_journals(folder)
    chosen = choose(found + find_own_folders(folder, found), folder)
    number = attempt_of(chosen.journals, attempt, folder)
    return received_ranks([one for one in chosen.journals if one.attempt == number], chosen.left_out)


def attempt_of(journals: Sequence[Found], asked: int | None, folder: Path) -> int:
    """Return the attempt that was asked for, by default the last of those in ``journals``, of which there are some.

    Raises:
        RunFolderError: there was no such attempt.
    """
    readable = [one for one in journals if not one.trouble] or journals
    there = sorted({one.attempt for one in readable})
    if asked is None:
        return there[-1]
    if asked not in there:
        held = f"attempt {there[0]} alone" if len(there) == 1 else f"attempts {', '.join(map(str, there))}"
        raise RunFolderError(
            f"{folder} has no attempt {asked}; it has {held}; "
            f"example: training-profiler report {folder} --attempt {there[-1]}"
        )
    return asked


def received_ranks(journals: Sequence[Found], left_out: Sequence[str] = ()) -> ReceivedRanks:
    """Return what the journals of one attempt say of their ranks; ``left_out`` are sentences known before."""
    by_rank: dict[int, RankSummary] = {}
    sentences, untold, torn = list(left_out), [], []
    ended, unended = 0, []
    for one in journals:
        try:
            is_read = one.trouble in ("", NO_JOURNAL)
            end = read_end(one.path, "rank", _sums) if is_read else End[RankSummary](None, False, False)
        except OSError as error:
            sentences.append(f"left out: {one.shown} cannot be read ({error.strerror})")
            continue
        sums = end.value
        if sums is not None and sums.who.rank not in by_rank:
            by_rank[sums.who.rank] = sums
            torn += [one.shown] * end.is_torn
        elif one.trouble:
            sentences.append(f"left out: {one.shown} {one.trouble}")
            continue
        elif sums is None and one.rank != 0:  # a run of one rank tells nobody
            untold.append(one.shown)
        ended += end.has_end
        unended += [one] * (not end.has_end and not end.is_torn)  # a torn one may be a copy made while it ran
    if ended:
        sentences += _unended(unended)
    if untold:
        sentences.append(f"no figures of ranks that ended before they told any: {_enumerated(untold)}")
    if torn:
        sentences.append(f"the last line is torn, the one before it was read: {_enumerated(torn)}")
    told = tuple(by_rank[rank] for rank in sorted(by_rank))
    world_size = max([sums.who.world_size for sums in told] + [_world_size(one) for one in journals], default=1)
    last_ns = max((sums.sent_ns for sums in told), default=0)
    return ReceivedRanks(
        told,
        world_size,
        tuple(_bounded(sentences)),
        {sums.who.rank: (last_ns - sums.sent_ns) / NS_PER_S for sums in told},
        outdated_after_s(_flush_s(journals), world_size),
    )


def _unended(journals: Sequence[Found]) -> list[str]:
    """Return sentences on ranks whose journal has no end, while others' have one."""
    by_state: dict[bool | None, list[str]] = {False: [], True: [], None: []}
    for one in journals:
        begin = one.begin or {}
        state = is_running(begin.get("host"), begin.get("pid"), one.wall_ns / NS_PER_S)
        by_state[state].append("?" if one.rank is None else str(one.rank))
    said = {False: "killed before the end", True: "still running", None: "killed before the end, or still running"}
    return [
        f"{said[state]}: {'rank' if len(ranks) == 1 else 'ranks'} {_enumerated(ranks)}"
        for state, ranks in by_state.items()
        if ranks
    ]


def _sums(record: dict[str, Any]) -> RankSummary:
    sums = rank_summary_from_data({key: value for key, value in record.items() if key != "kind"})
    who = sums.who
    numbers = (who.rank, who.world_size, who.attempt, sums.sent_ns, sums.begin_ns, sums.steps)
    if not all(type(number) is int for number in numbers) or not 0 <= who.rank < who.world_size <= MOST_RANKS:
        raise ValueError(f"{who} is no rank")
    return sums


def _world_size(one: Found) -> int:
    who = (one.begin or {}).get("who")
    size = who.get("world_size") if isinstance(who, dict) else None
    return size if type(size) is int and 1 <= size <= MOST_RANKS else 1


def _flush_s(journals: Sequence[Found]) -> float:
    for one in journals[:1]:
        settings = read_meta(one.path.parent).get("settings")
        flush_s = settings.get("flush_s") if isinstance(settings, dict) else None
        return float(flush_s) if isinstance(flush_s, (int, float)) else 0.0
    return 0.0


def _bounded(sentences: list[str]) -> list[str]:
    more = len(sentences) - MOST_SENTENCES
    return sentences if more <= 0 else [*sentences[:MOST_SENTENCES], f"{more} more files left out"]


def _enumerated(names: Sequence[str], most: int = 8) -> str:
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")
