"""Reads a run folder, with the summaries of its ranks: the final stats come from the journals alone."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from training_profiler.base.errors import RunFolderError
from training_profiler.base.text import printable
from training_profiler.base.units import BYTES_PER_MIB, NS_PER_S, counted, duration_text
from training_profiler.model.ranks import AllRanksStats, GradientSyncStats
from training_profiler.model.snapshot import Snapshot
from training_profiler.ranks.comparison import all_ranks_stats
from training_profiler.ranks.message import outdated_after_s
from training_profiler.ranks.summary import RankSummary, gradient_sync_stats, rank_summary_from_data
from training_profiler.safety.files import is_folder, open_file
from training_profiler.storage.journal_discovery import (
    MOST_NUMBER,
    NO_JOURNAL,
    AttemptJournals,
    End,
    JournalFile,
    attempts_before,
    count_in,
    enumerated,
    find_journals,
    inspect_journal,
    is_beginning,
    is_running,
    lines_of_journal,
    read_end,
    select_attempt,
    steps_of,
)
from training_profiler.storage.replay import Replay
from training_profiler.storage.run_folder import (
    META,
    REPORT_DATA,
    is_own_name,
    journal_name,
    program_in,
    read_meta,
    read_object,
    run_named,
)
from training_profiler.storage.timeline_reader import RankReader

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
    flush_s = float(flush_s) if isinstance(flush_s, (int, float)) and 0 <= flush_s <= MOST_NUMBER else 0.0
    more = len(messages) - MOST_MESSAGES
    messages[MOST_MESSAGES:] = [f"{more} more files left out"] if more > 0 else []
    return ReceivedRanks(
        summaries, world_size, tuple(messages), _ages(summaries), outdated_after_s(flush_s, world_size)
    )


def _ages(summaries: Sequence[RankSummary]) -> dict[int, float]:
    """Return how much older each rank's summary is than the latest one, in s."""
    # Clocks of machines may differ by an hour, and ranks may begin one after the other: both have to say so.
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
    who = journal.begin.get("who")
    size = who.get("world_size") if isinstance(who, dict) else None
    return size if type(size) is int and 1 <= size <= MOST_RANKS else 1


RUNNING, ENDED, KILLED, UNKNOWN = "running", "ended", "killed", "unknown"
MOST_REPORT_BYTES: Final = 64 * BYTES_PER_MIB
STATES: Final = {True: RUNNING, False: KILLED, None: UNKNOWN}


@dataclass(frozen=True, slots=True)
class ListedRun:
    """One run. None means unknown; texts are fit for a terminal."""

    folder: str
    began: str | None  # ISO 8601
    name: str | None
    program: str | None
    state: str  # running, ended, killed, or unknown: on another machine, without an end
    steps: int | None
    step_s: float | None  # mean after warm-up; of a run without a final summary, of its last interval
    verdict: str | None
    ended_by: str | None  # exception or signal
    problem: str | None = None  # why nothing else is known


def list_runs(parent: Path) -> list[ListedRun]:
    """Return the runs in ``parent``, newest first."""
    return [listed_run(folder) for folder in run_folders(parent)]


def listed_run(folder: Path) -> ListedRun:
    """Return what a list shows of one run."""
    meta = read_meta(folder)
    attempts = meta.get("attempts")
    last = attempts[-1] if isinstance(attempts, list) and attempts and isinstance(attempts[-1], dict) else {}
    report = read_object(folder / REPORT_DATA, MOST_REPORT_BYTES)
    if report is not None:
        step_time = report.get("step_time")
        avg_s = step_time.get("avg_s") if isinstance(step_time, dict) else None
        step_s = float(avg_s) if isinstance(avg_s, (int, float)) and 0 <= avg_s <= MOST_NUMBER else None
        state, steps, problem = ENDED, count_in(report.get("steps")), None
    else:
        state, steps, step_s, problem = _from_journal(folder, meta, last)
    texts = (meta.get("began"), run_name(meta), *((report or {}).get(key) for key in ("verdict", "ended_by")))
    began, name, verdict, ended_by = (printable(text) if isinstance(text, str) else None for text in texts)
    program = program_in(meta.get("command", ""))
    return ListedRun(printable(str(folder)), began, name, program, state, steps, step_s, verdict, ended_by, problem)


def _from_journal(
    folder: Path, meta: dict[str, Any], last: dict[str, Any]
) -> tuple[str, int | None, float | None, str | None]:
    """Return state, steps, step time and problem, from the end of rank 0's journal."""
    number = count_in(last.get("number")) or 0

    name = journal_name(0, number)
    journal = inspect_journal(folder / name, name)
    try:
        if journal.problem and not (journal.problem == NO_JOURNAL and is_beginning(folder / name)):
            return UNKNOWN, None, None, f"{name} {journal.problem}"
        end = read_end(folder / name, "interval", steps_of)
    except OSError as error:
        return UNKNOWN, None, None, f"{name} cannot be read ({error.strerror})"
    steps, step_s, _ = end.value if end.value is not None else (None, None, None)
    if end.has_end:
        return ENDED, steps, step_s, None
    wall_ns = count_in(last.get("begin_wall_ns"))
    process = (last or meta).get("host"), (last or meta).get("pid")
    is_alive = is_running(*process, wall_ns / NS_PER_S) if wall_ns is not None else None
    return STATES[is_alive], steps, step_s, None


def run_folders(parent: Path) -> list[Path]:
    """Return the run folders in ``parent``, newest first; those of ranks that knew no run folder are left out.

    The names begin with the time, so no file has to be read.
    """
    try:
        names = [name for name in os.listdir(parent) if name[:8].isdigit() and not is_own_name(name)]
    except OSError:
        return []
    folders = [parent / name for name in sorted(names, key=_order, reverse=True)]
    files = (META, journal_name(0))
    return [each for each in folders if is_folder(each) and any((each / name).exists() for name in files)]


def _order(name: str) -> tuple[str, int, str]:
    """Return the time of a folder, and its number among those of one second."""
    stem, _, number = name.rpartition("-")
    is_numbered = stem.count("-") >= 1 and number.isdecimal()
    return name[:15], int(number) if is_numbered else 1, name


def run_name(meta: dict[str, Any]) -> str | None:
    """Return the name that the user gave the run; None without one."""
    settings = meta.get("settings")
    name = settings.get("name") if isinstance(settings, dict) else None
    name = name or meta.get("name")
    return name if isinstance(name, str) and name else None


def choose_run(given: Path | None, runs: Path) -> Path:
    """Return the run folder that ``given`` means: a run, the newest of a folder of runs, or a name among ``runs``.

    Raises:
        RunFolderError: there is no such run.
    """
    if given is None:
        return newest_runs(runs, 1)[0]
    if os.path.lexists(given):
        return newest_run(given) or given
    named = run_named(str(given), runs)
    if named is None:
        raise RunFolderError(
            f"{given} is neither a folder nor the name of a run in {runs}; training-profiler list shows the runs"
        )
    return named


def newest_runs(runs: Path, count: int) -> list[Path]:
    """Return the ``count`` newest runs in ``runs``, newest first.

    Raises:
        RunFolderError: there are fewer.
    """
    folders = run_folders(runs)[:count]
    if not folders:
        raise no_runs(runs)
    if len(folders) < count:
        raise RunFolderError(f"{runs} holds {counted(len(folders), 'run')}, and {count} are needed")
    return folders


def no_runs(folder: Path) -> RunFolderError:
    """Return the error that a folder of runs has none, which says how to make one."""
    shown = folder if folder.is_absolute() else f"./{folder}"
    return RunFolderError(f"No runs in {shown}. Make one with: RECTIFIED_FLOW_PROFILE=1 python train.py")


def journals_of_running(folder: Path, command: str) -> list[JournalFile]:
    """Return the readable journals of a run folder; ``command`` is for the example in a message.

    Raises:
        RunFolderError: ``folder`` is not a run folder.
    """
    if not folder.is_dir():
        raise RunFolderError(f"{folder} is not a folder; example: training-profiler {command} runs/20261121-142530")
    journals = [journal for journal in find_journals(folder) if not journal.problem]
    if not journals:
        raise RunFolderError(f"{folder} is not a run folder: it has no journal (rank0.jsonl)")
    own = folder.resolve()
    if all(journal.path.resolve().parent != own for journal in journals):  # a training reads its own folder only
        run = max(journal.path.parent for journal in journals)
        raise RunFolderError(f"{folder} is not a run folder, but contains one; example: {run}")
    return journals


def is_still_running(journal: JournalFile) -> bool | None:
    """Return whether the process that writes a journal still runs; None if that is unknown."""
    try:
        if read_end(journal.path, "end", lambda record: record).has_end:
            return False
    except OSError:
        return None
    return journal.is_running


def read_run(folder: Path, attempt: int | None = None, series: RankReader | None = None) -> Snapshot:
    """Return the stats of the run in ``folder``, whether or not it has ended.

    Stats of a single rank are rank 0's, or those of the lowest rank with a journal.

    Args:
        folder: the run's, or a folder with copies of its ranks' journals, together or in one folder per machine.
        attempt: the attempt of a restarted training; the last by default.
        series: gets the steps one by one, of the same rank.

    Raises:
        RunFolderError: the folder is not a run's, no journal in it is readable, or there was no such attempt.
    """
    found = find_attempt(folder, attempt)
    for journal in found.of_attempt:
        try:
            snapshot = _read_journal(folder, journal, series)
        except RunFolderError as error:
            found.left_out.append(f"left out: {error}")
            continue
        return with_ranks(snapshot, journal, found)
    raise RunFolderError(found.left_out[-len(found.of_attempt)].removeprefix("left out: "))


def find_attempt(folder: Path, attempt: int | None = None) -> AttemptJournals:
    """Return the journals of the run in ``folder``, and those of one attempt; the last by default.

    Raises:
        RunFolderError: the folder is not a run's, or there was no such attempt.
    """
    found = find_journals(folder)
    if not found or _is_folder_of_runs(folder, found):
        raise RunFolderError(_why_not(folder))
    return select_attempt(folder, found, attempt)


def newest_run(folder: Path) -> Path | None:
    """Return the run in ``folder`` that began last; None where ``folder`` is a run itself, or holds none."""
    found = find_journals(folder)
    if not found or not _is_folder_of_runs(folder, found):
        return None
    journals = [journal for journal in found if not journal.problem]
    of_runs = [journal for journal in journals if not is_own_name(journal.path.parent.name)] or journals
    newest = max(of_runs, key=lambda journal: (journal.wall_ns, journal.path), default=None)
    return None if newest is None else newest.path.parent


def with_ranks(snapshot: Snapshot, primary: JournalFile, found: AttemptJournals) -> Snapshot:
    """Return the stats of ``primary`` with those of all ranks and of earlier attempts."""
    of_attempt, left_out = found.of_attempt, found.left_out
    journals = [journal for journal in found.all if not journal.problem]
    others = [journal for journal in of_attempt if not journal.problem or journal.problem == NO_JOURNAL]
    if primary.rank:
        why = "cannot be read" if any(journal.rank == 0 for journal in of_attempt) else "is missing"
        left_out = [f"the figures above are rank {primary.rank}'s: rank 0's journal {why}", *left_out]
    received = received_ranks(others, left_out)
    ranks, notes = received.stats(), list(snapshot.health.notes)
    if ranks is None:
        notes += received.left_out
    last = max((journal.attempt for journal in journals), default=primary.attempt)
    if last > primary.attempt:
        notes.append(f"this is attempt {primary.attempt}; the last one was attempt {last}")
    return replace(
        snapshot,
        ranks=ranks,
        gradient_sync=received.exchange(primary.rank or 0),
        attempts=attempts_before(journals, primary.attempt),
        health=replace(snapshot.health, notes=tuple(notes)),
    )


def _is_folder_of_runs(folder: Path, found: Sequence[JournalFile]) -> bool:
    """Return whether the folders below ``folder`` are runs, and not the machines of one run."""
    parents = {journal.path.parent for journal in found}
    if folder in parents:
        return False
    readable = [journal for journal in found if journal.begin]
    if len(parents) > 1 and len({journal.run for journal in readable}) == 1 and readable[0].run is not None:
        return False
    return not readable or any(journal.run in (None, journal.path.parent.name) for journal in readable)


def _why_not(folder: Path) -> str:
    if not folder.is_dir():
        what = "is a file, not a run folder" if folder.exists() else "does not exist"
        example = folder.parent if any(folder.parent.glob("rank*.jsonl")) else "runs/20261121-142530"
        return f"{folder} {what}; example of a run folder: {example}"
    runs = sorted({journal.parent.name for journal in folder.glob("*/rank*.jsonl")})
    if runs:
        held = "a run" if len(runs) == 1 else f"{len(runs)} runs"
        return f"{folder} holds {held}; give that folder itself, e.g. {folder / runs[-1]}"
    try:
        open_file(folder / journal_name(0), follow=True).close()
        reason = "it is none of the run's"
    except OSError as error:
        reason = str(error.strerror)
    return f"{folder} is not a run folder: {journal_name(0)} cannot be read ({reason})"


def _read_journal(folder: Path, found: JournalFile, series: RankReader | None) -> Snapshot:
    if found.problem or not found.begin:
        raise RunFolderError(f"{found.path} {found.problem}")
    replay = Replay() if series is None else series.begin(found)
    for line in lines_of_journal(found.path):
        replay.add(line)
    replay.end()
    if replay.has_failed:
        raise RunFolderError(f"{found.path} holds a line that is not a journal's: {replay.problem}")
    return replay.snapshot(folder, found)
