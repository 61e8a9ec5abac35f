"""What a list of runs shows of each: from meta.json and report.json, and from the journal's end where there is none."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from training_profiler.base.text import printable
from training_profiler.base.units import BYTES_PER_MIB, NS_PER_S
from training_profiler.model.bounds import MOST_SUM
from training_profiler.storage.journal_discovery import NO_JOURNAL, inspect_journal
from training_profiler.storage.journal_tail import is_beginning, read_end
from training_profiler.storage.launch import is_running
from training_profiler.storage.run_folder import REPORT_DATA, journal_name
from training_profiler.storage.run_lookup import program_in, read_meta, read_object
from training_profiler.storage.run_reader import run_folders, run_name

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
    name, began = run_name(meta), meta.get("began")
    program = program_in(meta.get("command", ""))
    attempts = meta.get("attempts")
    last = attempts[-1] if isinstance(attempts, list) and attempts and isinstance(attempts[-1], dict) else {}
    report = read_object(folder / REPORT_DATA, MOST_REPORT_BYTES)
    if report is not None:
        state, steps, step_s = ENDED, _count(report.get("steps")), None
        step_time = report.get("step_time")
        if isinstance(step_time, dict):
            step_s = _seconds(step_time.get("avg_s"))
        problem = None
    else:
        state, steps, step_s, problem = _from_journal(folder, meta, last)
    verdict, ended_by = (None if report is None else report.get(key) for key in ("verdict", "ended_by"))
    return ListedRun(
        printable(str(folder)),
        printable(began) if isinstance(began, str) else None,
        None if name is None else printable(name),
        program,
        state,
        steps,
        step_s,
        printable(verdict) if isinstance(verdict, str) else None,
        printable(ended_by) if isinstance(ended_by, str) else None,
        problem,
    )


def _from_journal(
    folder: Path, meta: dict[str, Any], last: dict[str, Any]
) -> tuple[str, int | None, float | None, str | None]:
    """Return state, steps, step time and problem, from the end of rank 0's journal."""
    number = _count(last.get("number")) or 0

    def figures(interval: dict[str, Any]) -> tuple[int, float | None]:
        step_ns = interval["step_ns"]
        steps = int(interval["first_step"]) + len(step_ns)
        mean_s = sum(map(int, step_ns)) / len(step_ns) / NS_PER_S if step_ns else None
        if not (0 <= steps <= MOST_SUM and (mean_s is None or 0 <= mean_s <= MOST_SUM)):
            raise ValueError("out of range")
        return steps, mean_s

    name = journal_name(0, number)
    journal = inspect_journal(folder / name, name)
    try:
        if journal.problem and not (journal.problem == NO_JOURNAL and is_beginning(folder / name)):
            return UNKNOWN, None, None, f"{name} {journal.problem}"
        end = read_end(folder / name, "interval", figures)
    except OSError as error:
        return UNKNOWN, None, None, f"{name} cannot be read ({error.strerror})"
    steps, step_s = end.value if end.value is not None else (None, None)
    if end.has_end:
        return ENDED, steps, step_s, None
    wall_ns = _count(last.get("begin_wall_ns"))
    process = (last or meta).get("host"), (last or meta).get("pid")
    is_alive = is_running(*process, wall_ns / NS_PER_S) if wall_ns is not None else None
    return STATES[is_alive], steps, step_s, None


def _count(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MOST_SUM else None


def _seconds(value: object) -> float | None:
    return float(value) if isinstance(value, (int, float)) and 0 <= value <= MOST_SUM else None
