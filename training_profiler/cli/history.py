"""Show step times from run to run, and what was new when they changed.

A run is compared with the last ones before it that did the same on the same machine: same arguments, folder and ranks.
A change stands here where each of these shows it, by the test of `compare`. Runs on a busy machine are not compared.

    training-profiler history
    training-profiler history "train.py --batch-size 64" --html history.html
"""

import argparse
import json
import sqlite3
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from training_profiler.base.errors import RunFolderError
from training_profiler.base.html import element, joined, part, table
from training_profiler.base.text import one_line, printable_data
from training_profiler.base.units import MS_PER_S, counted, ms_number, ms_text
from training_profiler.cli.common import DATE, layout_of_stdout, runs_folder, say, write
from training_profiler.reports.layout import Layout
from training_profiler.reports.page_document import document
from training_profiler.safety.files import write_output
from training_profiler.storage import history as past
from training_profiler.storage.run_folder import program_in, read_meta, typed_program
from training_profiler.storage.run_reader import RUNNING, listed_run, no_runs, read_run, run_folders
from training_profiler.storage.timeline_reader import RankReader

LONG_WAIT_S: Final = 10.0  # for a run that ends
ROWS: Final = 8  # of the plot
MOST_LISTED: Final = 12  # the newest
COLUMN, AXIS = 4, 10  # of the plot: a run, at most, and what stands left of all
LEVELS: Final = " ▁▂▃▄▅▆▇█"
HEADERS: Final = "run", "began", "ms/step", "CPU others took", "what is new"


def prepare_parser(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument(
        "program",
        nargs="?",
        metavar="PROGRAM",
        help="a script or module, also with its arguments, in quotes (default: that of the newest run)",
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of text")
    parser.add_argument("--html", type=Path, metavar="FILE", help="write a page with the trend as well")


def run(arguments: argparse.Namespace) -> int:
    """Print the history and return 0."""
    history, problem = history_of(runs_folder(), arguments.program)
    if problem:
        say(problem)
    if arguments.html is not None:
        write_output(arguments.html, page_of(history).encode("utf-8", "backslashreplace"))
    if arguments.json:
        text = json.dumps(history, indent=1, allow_nan=False) + "\n"
    else:
        text = render_history(history, layout_of_stdout())
        text += "" if arguments.html is None else f"\nPage: {one_line(arguments.html)}\n"
    write(text)
    return 0


def history_of(runs: Path, program: str | None = None) -> tuple[dict[str, Any], str]:
    """Return the runs of a program that do the same, as plain data, and why they are in no index, or "".

    They are in the order of their begins, and by default like the newest one. Seconds are floats, relative changes 0.03
    for 3%.

    Raises:
        RunFolderError: there is no such run.
    """
    if not run_folders(runs):
        raise no_runs(runs)
    rows, problem = past.with_index(runs, lambda index: all_runs(index, runs), LONG_WAIT_S)
    rows = rows or past.with_index(runs, lambda index: all_runs(index, runs), path=past.MEMORY)[0]
    if not rows:
        raise RunFolderError(f"no run in {runs} has enough steps of a program whose name is known")
    names = [(program_in(row.facts.get("command")), typed_program(row.facts.get("command"))) for row in rows]
    alike = [at for at, name in enumerate(names) if program is None or program in name]
    if not alike:
        raise RunFolderError(
            f"no run of {program} in {runs}; there are {', '.join(sorted({str(n) for n, _ in names}))}"
        )
    chosen = [row for row in rows if row.work == rows[alike[-1]].work]
    entries = [_entry(row, chosen[max(0, at - past.LOOKED_AT) : at][::-1]) for at, row in enumerate(chosen)]
    data: dict[str, Any] = printable_data({"program": names[alike[-1]][1], "runs": entries})
    return data, problem


def all_runs(index: sqlite3.Connection, runs: Path) -> list[past.RememberedRun]:
    """Return all runs of a folder with steps, after those that the index lacks, such as killed ones, are entered."""
    folders = {folder.name: folder for folder in reversed(run_folders(runs))}
    known = {name for (name,) in index.execute("SELECT folder FROM runs")}
    index.executemany("DELETE FROM runs WHERE folder = ?", [(name,) for name in known - folders.keys()])
    for name in [name for name in folders if name not in known]:
        row, folder = past.run_of(name, read_meta(folders[name])), folders[name]
        if row is None or listed_run(folder).state == RUNNING:
            continue
        with suppress(RunFolderError):
            snapshot = read_run(folder, series=(reader := RankReader()))
            row = row if reader.sums is None else row._replace(blocks=past.blocks_of(reader.sums, snapshot))
        past.put(index, row)
    rows = [
        row for row in map(past.row_of, index.execute("SELECT * FROM runs ORDER BY rowid")) if len(row.blocks.steps)
    ]
    return sorted(rows, key=lambda row: str(row.facts.get("began") or row.folder))


def _entry(run: past.RememberedRun, before: Sequence[past.RememberedRun]) -> dict[str, Any]:
    change, new, lost = past.change_of(before, run), run.differs_from(before[0]) if before else [], run.blocks.lost
    short = {"git.commit": 7}
    values = [(each.what, *(str(value)[: short.get(each.what, 40)] for value in each[1:])) for each in new]
    said = [f"{what} {was} -> {now}" for what, was, now in values]
    return {
        "run": run.folder,
        **{name: run.facts.get(name) for name in ("began", "host")},
        "steps": int(run.blocks.steps.sum()),
        "step_s": run.blocks.step_s,
        "cpu_share_of_others": lost,
        "is_busy": run.blocks.is_busy,
        "change": None if change is None else asdict(change),
        "new": [each._asdict() for each in new],
        "texts": [*([] if change is None else [change.text]), *([f"new: {', '.join(said)}"] if said else [])],
    }


def render_history(data: dict[str, Any], layout: Layout) -> str:
    """Return the trend as text: a plot, then the newest runs with what was new."""
    runs = data["runs"]
    lines = [*layout.wrap(f"{data['program']}: {counted(len(runs), 'run')}"), "", *_plot(runs, layout), ""]
    for each in runs[-MOST_LISTED:]:
        busy = f"  others took {each['cpu_share_of_others']:.0%} of the time" if each["is_busy"] else ""
        lines.append(f"{_began(each)}  {ms_text(each['step_s']):>8}  {each['run']}{busy}")
        lines += [line for text in each["texts"] for line in layout.wrap(text, " " * 13, " " * 15)]
    return "\n".join(lines) + "\n"


def _began(run: dict[str, Any]) -> str:
    return str(run["began"] or "")[DATE].replace("T", " ")


def _plot(runs: Sequence[dict[str, Any]], layout: Layout) -> list[str]:
    """Return a column for each of the newest runs; those on a busy machine are light."""
    shown = runs[-max(1, layout.width - AXIS) :]
    width = max(1, min(COLUMN, (layout.width - AXIS) // len(shown)))
    most_s, lines = max(each["step_s"] for each in shown), []
    for row in reversed(range(ROWS)):
        cells = ""
        for each in shown:
            level = max(0, min(8, round(8 * (each["step_s"] / most_s * ROWS - row))))
            mark = LEVELS[level] if layout.is_unicode else " #"[level >= 4]
            light = ":░"[layout.is_unicode] if each["is_busy"] and mark != " " else mark
            cells += (light * max(1, width - 1)).ljust(width)
        lines.append(f"{ {ROWS - 1: ms_text(most_s), 0: '0'}.get(row, ''):>{AXIS - 2}} |{cells}".rstrip())
    lines.append((" " * AXIS + "".join(("^" if each["change"] else "").ljust(width) for each in shown)).rstrip())
    return [*lines, *layout.wrap("time of a step; ^ shown to differ from the runs before; light: on a busy machine")]


def page_of(data: dict[str, Any]) -> str:
    """Return one page with the trend that loads nothing."""
    runs = data["runs"]

    def times(is_shown: Callable[[dict[str, Any]], bool]) -> list[float | None]:
        return [float(f"{MS_PER_S * each['step_s']:.4g}") if is_shown(each) else None for each in runs]

    lines = {
        "typical step": times(lambda each: not each["is_busy"]),
        "on a busy machine": times(lambda each: each["is_busy"]),
        "shown to differ": times(lambda each: each["change"] is not None),
    }
    rows = []
    for each in reversed(runs):
        busy = "" if each["cpu_share_of_others"] is None else f"{each['cpu_share_of_others']:.0%}"
        rows.append([each["run"], _began(each), ms_number(each["step_s"]), busy, "; ".join(each["texts"])])
    trend = part("trend", "Trend", element("div", id="machine-charts"))
    body = element("div", table("Runs, the newest first", HEADERS, rows), class_="texts")
    chart = {"title": "Time of a step", "unit": "ms", "x": "run", "s": list(range(1, len(runs) + 1))}
    chart |= {"names": list(lines), "values": list(lines.values())}
    return document("History", data["program"], joined([trend, part("runs", "Runs", body)]), {"machine": [chart]})
