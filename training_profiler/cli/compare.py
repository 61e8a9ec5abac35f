"""Compare runs: is a step faster or slower, by how much, and which section and line carry it.

BEFORE and AFTER are run folders or names of runs; by default they are the two newest. Each further run is compared with
BEFORE as well. Warm-up is left out, and so are steps on a busy machine where enough others remain.

Exit status: 0; 1 with --fail-if-slower, if a run is shown to be slower by at least that much; 2 if a run cannot be read
or compared. Where the intervals leave open whether a run is slower by so much, the status is 0 and a line says so.
With --fail-if-slower, the status is also 2 for a run that is not yet over, and for runs of two programs unless all runs
are given.

    training-profiler compare
    training-profiler compare baseline runs/20261121-142530 --fail-if-slower 3%
    training-profiler compare baseline candidate --html comparison.html
"""

import argparse
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from training_profiler.base.errors import RunFolderError
from training_profiler.base.text import one_line, printable
from training_profiler.cli.common import (
    add_forms,
    as_markdown,
    layout_of_stdout,
    percentage,
    runs_folder,
    say,
    write,
    write_card,
)
from training_profiler.reports.comparison import ComparedRuns, comparison_data, render_comparison, verdict_words
from training_profiler.reports.layout import Layout
from training_profiler.reports.page_comparison import render_comparisons
from training_profiler.reports.report_json import as_data
from training_profiler.safety.files import write_output
from training_profiler.statistics.compare import NOT_SHOWN, SLOWER, NoComparisonError, compare
from training_profiler.statistics.differences import differing, line_of
from training_profiler.storage.run_folder import program_in, read_meta, typed_path
from training_profiler.storage.run_reader import RUNNING, choose_run, listed_run, newest_runs, read_run, run_name
from training_profiler.storage.timeline_reader import RankReader

SLOWER_STATUS = 1
_QUOTED = ("the run ", "1 torn line", "the figures above", "left out")  # notes that concern what can be compared


def prepare_parser(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument(
        "runs",
        type=Path,
        nargs="*",
        metavar="RUN",
        help="BEFORE AFTER [MORE ...]: run folders, or names of runs (default: the newest two)",
    )
    parser.add_argument(
        "--fail-if-slower",
        type=percentage,
        metavar="PERCENT",
        help="exit with status 1 if a run is shown to be slower by at least that much, e.g. 3%%",
    )
    add_forms(parser, "one line of JSON for each pair")
    parser.add_argument("--html", type=Path, metavar="FILE", help="write a page with the steps of both runs as well")


class ReadRun:
    """A run as it was read."""

    def __init__(self, folder: Path) -> None:
        reader = RankReader()
        self.folder = folder
        self.snapshot = read_run(folder, series=reader)
        series, step = reader.series(), self.snapshot.step
        assert series is not None  # it has been read
        self.series = replace(series, warmup=0 if step is None else step.warmup_count)
        self.meta = read_meta(folder)
        self.program = program_in(self.meta.get("command", ""))
        name = run_name(self.meta)
        self.shown = typed_path(folder) + (f" ({printable(name)})" if name else "")


def run(arguments: argparse.Namespace) -> int:
    """Print the comparison and return the exit status."""
    runs = [ReadRun(folder) for folder in _chosen(arguments.runs)]
    pairs = [compared(runs[0], after) for after in runs[1:]]
    if arguments.fail_if_slower is not None:
        _check_can_fail(runs, pairs, len(arguments.runs) >= len(runs))
    if arguments.markdown:
        texts = [(verdict_words(each)[0], render_comparison(each, Layout())) for each in pairs]
        text = "\n".join(as_markdown(*words, runs[0].folder) for words in texts)
    elif arguments.json:
        text = "".join(json.dumps(comparison_data(each), allow_nan=False) + "\n" for each in pairs)
    else:
        text = "\n".join(render_comparison(each, layout_of_stdout()) for each in pairs)
    if arguments.card is not None:
        step, (headline, facts) = pairs[0].comparison.shown, verdict_words(pairs[0])
        before, after = (pairs[0].before, step.before_s), (pairs[0].after, step.relative)
        write_card(arguments.card, headline, before, after, facts, runs[0].folder)
    if arguments.html is not None:
        write_output(arguments.html, render_comparisons(pairs).encode("utf-8", "backslashreplace"))
        text += "" if arguments.json else f"\nPage: {one_line(arguments.html)}\n"
    write(text)
    limit = arguments.fail_if_slower
    return 0 if limit is None else max(_status(each, limit) for each in pairs)


def _check_can_fail(runs: list[ReadRun], pairs: list[ComparedRuns], are_given: bool) -> None:
    """Refuse what would let a check pass or fail by accident."""
    for each in runs:
        if listed_run(each.folder).state == RUNNING:
            raise RunFolderError(f"{each.folder} is not yet over; --fail-if-slower compares runs that have ended")
    for pair in () if are_given else pairs:
        if pair.other_program:
            raise RunFolderError(
                f"{pair.before} and {pair.after} are runs of two programs ({' and '.join(map(str, pair.programs))}); "
                "with --fail-if-slower, give both runs if that is meant"
            )


def _status(runs: ComparedRuns, limit: float) -> int:
    comparison, shown = runs.comparison, runs.comparison.shown
    if comparison.verdict == SLOWER and shown.relative >= limit:
        return SLOWER_STATUS
    if shown.high > limit:
        say(f"{runs.after} may still be {limit * 100:g}% slower: its step takes {shown.low:+.1%} to {shown.high:+.1%}")
    return 0


def _chosen(given: list[Path]) -> list[Path]:
    runs = runs_folder()
    if not given:
        return newest_runs(runs, 2)[::-1]
    if len(given) == 1:
        before, after = choose_run(given[0], runs), newest_runs(runs, 1)[0]
        if before.resolve() == after.resolve():
            raise RunFolderError(f"{given[0]} is the newest run itself; give the run to compare it with")
        return [before, after]
    chosen = [choose_run(each, runs) for each in given]
    for word, folder in zip(given[1:], chosen[1:], strict=True):
        if folder.resolve() == chosen[0].resolve():
            raise RunFolderError(f"{word} is the run to compare with, {chosen[0]}; give another one")
    return chosen


def compared(before: ReadRun, after: ReadRun) -> ComparedRuns:
    """Return the comparison of two runs.

    Raises:
        RunFolderError: they cannot be compared.
    """
    try:
        comparison = compare(before.series, after.series)
    except NoComparisonError as error:
        raise RunFolderError(f"{before.folder} and {after.folder} cannot be compared: {error}") from None
    step, training_s, saving_s = before.snapshot.step, before.snapshot.training_s, None
    if step is not None and training_s > 0 and comparison.verdict != NOT_SHOWN:
        saving_s = -comparison.shown.relative * step.total_s
    sections = {row.name: row for row in comparison.sections}
    places = {
        name: line_of(before.snapshot, after.snapshot, name, sections[name].seconds) for name in comparison.carriers
    }
    return ComparedRuns(
        before.shown,
        after.shown,
        comparison,
        {name: place for name, place in places.items() if place is not None},
        differing(*((run.meta, _facts(run)) for run in (before, after))),
        _notes(before, after),
        (before.program, after.program),
        saving_s,
        None if saving_s is None else saving_s / training_s,
    )


def _facts(run: ReadRun) -> dict[str, Any]:
    program = run.snapshot.program
    optimizer = None if program.optimizer is None else program.optimizer._asdict()
    return {**as_data(run.snapshot, ()), "program": {"optimizer": optimizer, "autocast": program.autocast}}


def _notes(before: ReadRun, after: ReadRun) -> list[str]:
    notes = []
    for name, run in (("before", before), ("after", after)):
        notes += [f"{name}: {note}" for note in run.snapshot.health.notes if note.startswith(_QUOTED)]
        ranks = run.snapshot.ranks
        if ranks is not None:
            notes.append(f"{name}: rank {run.series.rank} of {ranks.world_size} is compared")
        if run.snapshot.device is not None:
            notes.append(f"{name}: sections are host time; the step contains the waiting for the device")
    return notes
