"""Finds the journals in a run folder, written there or copied together, and selects those of one run."""

import os
import re
import socket
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, Generic, NamedTuple, TypeVar

from training_profiler.base.errors import RunFolderError
from training_profiler.base.text import printable
from training_profiler.base.units import BYTES_PER_GIB, BYTES_PER_MIB, NS_PER_S
from training_profiler.model.bounds import MOST_JOURNAL_BYTES, MOST_LINE_BYTES
from training_profiler.model.ranks import AttemptStats
from training_profiler.safety.files import NotRegularFileError, is_folder, lines_of, may_follow, open_file
from training_profiler.settings.settings import Launch
from training_profiler.storage.journal_lines import JOURNAL_SCHEMA
from training_profiler.storage.journal_lines import as_object as as_record
from training_profiler.storage.run_folder import is_own_name, read_journal_name

T = TypeVar("T")

HEAD_BYTES: Final = 64 * 1024  # contain the first line
TAIL_BYTES: Final = 256 * 1024  # first read; more if the line is not in it
GROWTH: Final = 8
MOST_AT_ONCE: Final = 8 * BYTES_PER_MIB
MOST_TRIES: Final = 1_000  # lines of the kind that cannot be used
_BEGIN: Final = re.compile(rb'\{"kind": ?"begin"')
_END: Final = re.compile(rb'\{"kind": ?"end"')


class End(NamedTuple, Generic[T]):
    """The end of a journal."""

    value: T | None
    is_torn: bool  # the last line is incomplete
    has_end: bool  # the last line is the end of the run


def read_head(path: Path) -> dict[str, Any] | None:
    """Return the first line, which identifies the journal; None if it is incomplete or of another kind.

    Raises:
        OSError: the file cannot be read.
    """
    with open_file(path, follow=may_follow(path)) as file:
        head, newline, _ = file.read(HEAD_BYTES).partition(b"\n")
    record = as_record(head) if newline else None
    return record if record is not None and record.get("kind") == "begin" else None


def lines_of_journal(path: Path) -> Iterator[bytes | None]:
    """Yield the lines of a journal; None for one that is too long.

    Raises:
        RunFolderError: the file cannot be read, or is larger than any journal.
    """
    try:
        with open_file(path, follow=may_follow(path)) as file:
            if os.fstat(file.fileno()).st_size > MOST_JOURNAL_BYTES:
                raise RunFolderError(f"{path} is larger than {MOST_JOURNAL_BYTES / BYTES_PER_GIB:g} GiB")
            yield from lines_of(file, MOST_LINE_BYTES)
    except OSError as error:
        raise RunFolderError(f"{path} cannot be read ({error.strerror})") from None


def is_beginning(path: Path) -> bool:
    """Return whether a journal has less than its first line, as for a moment when a run begins.

    Raises:
        OSError: the file cannot be read.
    """
    with open_file(path, follow=may_follow(path)) as file:
        head = file.read(HEAD_BYTES)
    return not head or (b"\n" not in head and _BEGIN.match(head) is not None)


def read_end(path: Path, kind: str, read: Callable[[dict[str, Any]], T]) -> End[T]:
    """Return ``read(line)`` of the last line of that kind that ``read`` accepts, and the state of the file's end.

    Raises:
        OSError: the file cannot be read.
    """
    of_kind = re.compile(rb'^\{"kind": ?"%s"[^\n]*' % kind.encode(), re.MULTILINE)
    end: End[T] = End(None, False, False)
    last, tries = b"", 0
    for number, block in enumerate(_blocks_backwards(path)):
        lines, _, torn = block.rpartition(b"\n") if not number else (block, b"", b"")
        last = last or lines.rstrip().rpartition(b"\n")[2]
        is_torn = end.is_torn or bool(torn.strip())
        end = End(None, is_torn, not is_torn and _END.match(last) is not None)
        for line in reversed(of_kind.findall(lines)):
            record, tries = as_record(line), tries + 1
            with suppress(KeyError, TypeError, ValueError, IndexError, AttributeError, OverflowError):
                if record is not None:
                    return end._replace(value=read(record))
            if tries >= MOST_TRIES:
                return end
    return end


def _blocks_backwards(path: Path) -> Iterator[bytes]:
    """Yield whole lines of a file, the last ones first, without reading more of it than needed."""
    with open_file(path, follow=may_follow(path)) as file:
        at = file.seek(0, 2)
        rest, length = b"", TAIL_BYTES
        while at > 0:
            begin = max(0, at - length)
            file.seek(begin)
            rest = file.read(at - begin) + rest
            at, length = begin, min(length * GROWTH, MOST_AT_ONCE)
            if at:
                rest, newline, lines = rest.partition(b"\n")
                if not newline:
                    if len(rest) > MOST_LINE_BYTES:  # no line of ours
                        return
                    continue
            else:
                lines = rest
            yield lines


SAME_START_S: Final = 2.0  # start times are on the wall clock, which may have been set since


class LaunchId(NamedTuple):
    """Identifies the processes of one launch. None means unknown."""

    host: str | None = None
    torchrun: str | None = None  # the run id set by the user, if it is not the default
    job: str | None = None  # of SLURM, with its step
    parent_pid: int | None = None
    parent_start_s: float | None = None  # by the host's wall clock


def this_launch(launch: Launch) -> LaunchId:
    """Return the launch of this process."""
    this = LaunchId(socket.gethostname(), launch.run_id, launch.job)
    try:
        import psutil  # imported here, because a report does not need it

        parent = psutil.Process(os.getppid())
        return this._replace(parent_pid=parent.pid, parent_start_s=parent.create_time())
    except Exception:  # it has ended or belongs to another user; psutil.Error is not a built-in
        return this


def launch_from_data(data: object) -> LaunchId:
    """Return the launch that ``_asdict`` was called on; values of another form are unknown."""
    values = data if isinstance(data, Mapping) else {}
    kinds: dict[str, Any] = {"host": str, "torchrun": str, "job": str, "parent_pid": int, "parent_start_s": float}
    return LaunchId(**{name: values[name] for name, kind in kinds.items() if isinstance(values.get(name), kind)})


def is_same_launch(launch: LaunchId, other: LaunchId) -> bool | None:
    """Return whether two processes are of the same launch; None if unknown."""
    if launch.torchrun is not None and other.torchrun is not None:
        return launch.torchrun == other.torchrun
    if launch.host == other.host and launch.parent_start_s is not None and other.parent_start_s is not None:
        is_same_start = abs(launch.parent_start_s - other.parent_start_s) <= SAME_START_S
        return launch.parent_pid == other.parent_pid and is_same_start
    if launch.job is not None and other.job is not None:
        return launch.job == other.job
    return None


def is_surely_another(launch: LaunchId, other: LaunchId) -> bool:
    """Return whether two processes with the same run name are certainly of different launches.

    Different parents on one host prove nothing: there may be two agents of torchrun, or a wrapper around each rank.
    """
    pairs = ((launch.torchrun, other.torchrun), (launch.job, other.job))
    return any(mine is not None and its is not None and mine != its for mine, its in pairs)


def is_running(host: object, pid: object, began_s: float) -> bool | None:
    """Return whether the process ``pid`` that ran on ``host`` at ``began_s`` still runs; None if unknown."""
    if host != socket.gethostname() or not isinstance(pid, int) or isinstance(pid, bool) or pid <= 0:
        return None
    try:
        import psutil
    except ImportError:
        return None
    try:
        process = psutil.Process(pid)
        is_dead = process.status() in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
        return not is_dead and process.create_time() <= began_s + SAME_START_S  # else another process has its id now
    except psutil.NoSuchProcess:
        return False
    except (psutil.Error, OverflowError, ValueError):
        return None


MOST_SHOWN: Final = 300  # characters of a path in a message
MOST_NUMBER: Final = 2**62
NO_JOURNAL: Final = "does not begin like a journal; is it a file of the profiler's?"


@dataclass(frozen=True, slots=True)
class JournalFile:
    """A file named like a journal."""

    path: Path
    shown: str  # path below the run folder
    size: int = 0
    rank: int | None = None
    attempt: int = 0
    begin: dict[str, Any] = field(default_factory=dict)  # the first line, if it is complete
    problem: str = ""  # why the file cannot be read; follows its name in a message

    @property
    def run(self) -> str | None:
        """The name of the run according to the first line."""
        name = self.begin.get("run")
        return name if isinstance(name, str) else None

    @property
    def launch(self) -> LaunchId:
        """The launch according to the first line."""
        return launch_from_data(self.begin.get("launched"))

    @property
    def process(self) -> tuple[Any, ...]:
        """Identifies the process that wrote the file."""
        return tuple(str(self.begin.get(key)) for key in ("host", "pid", "wall_ns", "begin_ns"))

    @property
    def is_running(self) -> bool | None:
        """Whether the process that wrote the file still runs; None if unknown."""
        return is_running(self.begin.get("host"), self.begin.get("pid"), self.wall_ns / NS_PER_S)

    @property
    def wall_ns(self) -> int:
        """Begin of the run on the wall clock; 0 if unknown."""
        return count_in(self.begin.get("wall_ns")) or 0


class AttemptJournals(NamedTuple):
    """The journals of a run."""

    all: list[JournalFile]
    of_attempt: list[JournalFile]  # of the attempt that was asked for, by rank
    left_out: list[str]


def find_journals(folder: Path, stem: str = "rank") -> list[JournalFile]:
    """Return the files named like journals in ``folder`` and in folders one level below it."""
    entries = [entry for entry in _entries(folder) if not entry.name.endswith(".jsonl")]
    below = [entry for entry in entries if is_folder(entry) or (may_follow(entry) and entry.is_dir())]
    names = [path for parent in (folder, *sorted(below)) for path in sorted(_entries(parent))]
    return [inspect_journal(path, str(path.relative_to(folder))) for path in names if is_journal(path, stem)]


def find_own_folder_journals(folder: Path, found: Sequence[JournalFile]) -> list[JournalFile]:
    """Return the journals beside ``folder`` of ranks of its launch that ended before they knew its name."""
    first = min((journal for journal in found if journal.run == folder.name), key=_order, default=None)
    if first is None or is_own_name(folder.name):
        return []
    known = {(journal.rank, journal.attempt) for journal in found if not journal.problem}
    nearest: dict[tuple[int | None, int], JournalFile] = {}
    for sibling in sorted(path for path in _entries(folder.parent) if is_own_name(path.name)):
        for path in sorted(_entries(sibling)):
            journal = inspect_journal(path, f"../{sibling.name}/{path.name}") if is_journal(path) else None
            if journal is None or journal.problem or (journal.rank, journal.attempt) in known:
                continue
            other = nearest.get((journal.rank, journal.attempt))
            distance_ns = abs(journal.wall_ns - first.wall_ns)  # a process may profile several runs in sequence
            if is_same_launch(journal.launch, first.launch) and (
                other is None or distance_ns < abs(other.wall_ns - first.wall_ns)
            ):
                nearest[journal.rank, journal.attempt] = journal
    return list(nearest.values())


def is_journal(path: Path, stem: str = "rank") -> bool:
    """Return whether a file is named like a journal."""
    return path.name.startswith(stem) and path.name.endswith(".jsonl")


def select_journals(found: Iterable[JournalFile], folder: Path) -> tuple[list[JournalFile], list[str]]:
    """Return the journals of the run in ``folder``, one for each rank and attempt, and messages on files left out."""
    left_out: list[str] = []
    belonging = _of_one_run(list(found), folder, left_out)
    by_place: dict[tuple[int | None, int, str], list[JournalFile]] = defaultdict(list)
    for journal in belonging:
        # An unreadable file does not displace another one.
        by_place[journal.rank, journal.attempt, journal.shown if journal.problem else ""].append(journal)
    journals = []
    for same in by_place.values():  # of each rank and attempt: that of the last process, and its longest copy
        best = max(same, key=lambda journal: (journal.wall_ns, journal.size))
        journals.append(best)
        for journal in same:
            if journal is not best:
                why = "a copy of" if journal.process == best.process else "of an earlier process than"
                left_out.append(f"left out: {journal.shown}, {why} {best.shown}")
    return sorted(journals, key=_order), left_out


def select_attempt(folder: Path, found: list[JournalFile], asked: int | None) -> AttemptJournals:
    """Return the journals of the run in ``folder``, where some were ``found``, and those of one attempt; or the last.

    Raises:
        RunFolderError: there was no such attempt.
    """
    journals, left_out = select_journals(found + find_own_folder_journals(folder, found), folder)
    there = sorted({journal.attempt for journal in [each for each in journals if not each.problem] or journals})
    number = there[-1] if asked is None else asked
    if number not in there:
        held = f"attempt {there[0]} alone" if len(there) == 1 else f"attempts {', '.join(map(str, there))}"
        raise RunFolderError(
            f"{folder} has no attempt {asked}; it has {held}; "
            f"example: training-profiler report {folder} --attempt {there[-1]}"
        )
    return AttemptJournals(journals, [journal for journal in journals if journal.attempt == number], left_out)


def _order(journal: JournalFile) -> tuple[int, float]:
    return journal.attempt, float("inf") if journal.rank is None else journal.rank


def _entries(folder: Path) -> list[Path]:
    with suppress(OSError):
        return [folder / name for name in os.listdir(folder)]
    return []


def inspect_journal(path: Path, shown: str) -> JournalFile:
    """Return what the first line of a file says that is named like a journal; ``shown`` is its path in messages."""
    shown = printable(shown, MOST_SHOWN)
    rank, attempt = read_journal_name(path.name) or (None, 0)
    file = JournalFile(path, shown, 0, rank, attempt)
    try:
        file = replace(file, size=path.stat().st_size)
        begin = read_head(path)
    except NotRegularFileError:
        return replace(file, size=0, problem="is not a file")
    except OSError as error:
        return replace(file, size=0, problem=f"cannot be read ({error.strerror})")
    if begin is None:
        return replace(file, problem=NO_JOURNAL)
    if begin.get("schema") != JOURNAL_SCHEMA:
        problem = (
            f"has schema {printable(repr(begin.get('schema')))}, this version reads {JOURNAL_SCHEMA}; "
            f"read it with the version that wrote it (meta.json names it)"
        )
        return replace(file, problem=problem)
    who = begin.get("who")
    stated_attempt = count_in(who.get("attempt")) if isinstance(who, dict) else None
    stated_rank = count_in(begin.get("rank"))
    return replace(
        file,
        rank=rank if stated_rank is None else stated_rank,
        attempt=attempt if stated_attempt is None else stated_attempt,
        begin=begin,
    )


def count_in(value: object) -> int | None:
    """Return a number of things, or of ns, from a file; None for anything else."""
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MOST_NUMBER else None


def _of_one_run(found: Sequence[JournalFile], folder: Path, left_out: list[str]) -> list[JournalFile]:
    names = Counter(journal.run for journal in found if journal.run is not None)
    if not names:
        return list(found)
    with_rank_0 = {journal.run for journal in found if journal.rank == 0}
    latest: dict[str | None, int] = defaultdict(int)
    for journal in found:
        latest[journal.run] = max(latest[journal.run], journal.wall_ns)
    run = max(names, key=lambda name: (name == folder.name, name in with_rank_0, names[name], latest[name]))
    of_run = [journal for journal in found if journal.run in (None, run)]
    anchor = min(
        (journal for journal in of_run if journal.run == run), key=lambda journal: (_order(journal), -journal.wall_ns)
    )
    kept = [journal for journal in of_run if not is_surely_another(journal.launch, anchor.launch)]
    are_kept = set(map(id, kept))
    others = [journal for journal in found if id(journal) not in are_kept]
    places = {(journal.rank, journal.attempt) for journal in kept}
    # A rank that never learned the run's name, or an attempt that did not find the run's folder.
    joined = [
        journal
        for journal in others
        if (journal.rank, journal.attempt) not in places
        and is_same_launch(journal.launch, anchor.launch)
        and journal.run != run
    ]
    are_joined = set(map(id, joined))
    of_others: dict[str | None, list[str]] = defaultdict(list)
    for journal in others:
        if id(journal) not in are_joined:
            of_others[journal.run].append(journal.shown)
    left_out += [
        f"left out, of another run ({printable(str(name))}): {enumerated(shown, 4)}"
        for name, shown in of_others.items()
    ]
    return kept + joined


def enumerated(names: Sequence[str], most: int = 8) -> str:
    """Return the names in one text: the first ones, and how many more there are."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def attempts_before(journals: Iterable[JournalFile], number: int) -> tuple[AttemptStats, ...]:
    """Return the attempts before ``number``, each from the journal of its lowest rank, if there is one.

    ``journals`` are in the order of attempts and ranks.
    """
    stats: dict[int, AttemptStats] = {}
    for journal in (each for each in journals if each.attempt < number and each.begin):
        if journal.attempt not in stats and (attempt := _figures(journal)) is not None:
            stats[journal.attempt] = attempt
    return tuple(stats[number] for number in sorted(stats))


def steps_of(interval: dict[str, Any]) -> tuple[int, float | None, int]:
    """Return the steps until the end of an interval, the mean of its own in s if it has some, and its end in ns.

    Raises:
        LookupError, TypeError, ValueError: it is none, or its numbers cannot be.
    """
    step_ns, end_ns = interval["step_ns"], int(interval["end_ns"])
    steps = int(interval["first_step"]) + len(step_ns)
    mean_s = sum(map(int, step_ns)) / len(step_ns) / NS_PER_S if step_ns else None
    if not all(0 <= number <= MOST_NUMBER for number in (steps, mean_s or 0, end_ns)):
        raise ValueError("out of range")
    return steps, mean_s, end_ns


def _figures(journal: JournalFile) -> AttemptStats | None:
    try:
        steps, _, end_ns = read_end(journal.path, "interval", steps_of).value or (0, None, 0)
        end = read_end(journal.path, "end", _ended_by).value
    except OSError:
        return None
    begin_ns = count_in(journal.begin.get("begin_ns"))
    wall_s = 0.0 if begin_ns is None else max(0, end_ns - begin_ns) / NS_PER_S
    return AttemptStats(journal.attempt, steps, wall_s, end[0] if end else None, is_ended=end is not None)


def _ended_by(end: dict[str, Any]) -> tuple[str | None]:
    return (None if end["ended_by"] is None else printable(str(end["ended_by"])),)
