"""Print the final summary of a run, also for runs that were killed.

RUN is a run folder, a folder of runs, of which the newest is reported, or the name of a run. Journals of ranks that
ran on several machines may be copied together first, into RUN or into folders in it.
"""

import argparse
import json
import os
from collections.abc import Sequence
from pathlib import Path

from training_profiler.base.errors import SettingsError
from training_profiler.base.text import printable_lines
from training_profiler.cli.common import add_attempt, add_run, layout_of_stdout, origin_of, runs_folder, say, write
from training_profiler.diagnosis import Finding, diagnose
from training_profiler.model.snapshot import Snapshot
from training_profiler.reports.console import render_final
from training_profiler.reports.report_json import as_data, report_schema
from training_profiler.reports.verdict import saving_text
from training_profiler.settings.settings import FORMATS
from training_profiler.storage.run_folder import run_named, typed_path
from training_profiler.storage.run_reader import newest_run, no_runs, read_run
from training_profiler.trials.report import render_results, with_trials
from training_profiler.trials.results import Results, load
from training_profiler.trials.results import as_data as trials_data


def prepare_parser(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    add_run(parser)
    add_attempt(parser)
    parser.add_argument("--json", action="store_true", help="print all figures as JSON instead of text")
    parser.add_argument("--json-schema", action="store_true", help="print the JSON schema of --json, and read no run")
    parser.add_argument("--format", choices=FORMATS, default=FORMATS[0], help="layout of the text (default: table)")
    parser.add_argument("--full", action="store_true", help="print all that was measured, and every finding")
    parser.add_argument("--checklist", action="store_true", help="add the quick checklist to the text")
    parser.add_argument("--explain", metavar="CODE", help="print all figures of one finding, such as unexplained")


def run(arguments: argparse.Namespace) -> int:
    """Print the report and return 0."""
    if arguments.json_schema:
        print(json.dumps(report_schema(Results), indent=1))
        return 0
    folder = chosen_run(arguments.run)
    snapshot = read_run(folder, arguments.attempt)
    findings, tried = findings_of(folder, snapshot), load(folder)
    if arguments.json:
        trials = None if tried is None else trials_data(tried)
        text = json.dumps(as_data(snapshot, findings, trials), indent=1, allow_nan=False) + "\n"
    elif arguments.explain is not None:
        text = explained(snapshot, findings, arguments.explain)
    else:
        layout = layout_of_stdout(arguments.format)
        origin, is_full = origin_of(folder), arguments.full
        text = render_final(snapshot, findings, layout, arguments.checklist, origin, is_full).lstrip("\n")
        if tried is not None:
            text = f"{render_results(tried, typed_path(folder), layout)}\n{text}"  # the answer comes last
    write(text)
    return 0


def explained(snapshot: Snapshot, findings: Sequence[Finding], code: str) -> str:
    """Return a finding with all figures behind it; raise a SettingsError where the run has no such finding."""
    finding = next((each for each in findings if each.code == code), None)
    if finding is None:
        known = ", ".join(each.code for each in findings) or "none"
        raise SettingsError(f"--explain {code}: this run has no such finding; it has {known}")
    layout = layout_of_stdout(FORMATS[0])
    lines = [*layout.wrap(f"{finding.code}: {finding.message}"), ""]
    lines += layout.wrap(f"could save {saving_text(snapshot, finding)}") if finding.potential_saving_s else []
    lines += layout.wrap(finding.advice, first="-> ", rest="   ") if finding.fix else []
    width = max(map(len, finding.evidence), default=0)
    figures = (f"{value:.6g}" if isinstance(value, float) else str(value) for value in finding.evidence.values())
    rows = [f"{name:<{width}}  {figure}" for name, figure in zip(finding.evidence, figures, strict=True)]
    return printable_lines("\n".join([*lines, "", "figures", *rows]) + "\n", layout.has_color)


def findings_of(folder: Path, snapshot: Snapshot) -> list[Finding]:
    """Return the findings of a run, with what was tried on it."""
    return with_trials(diagnose(snapshot), load(folder))


def chosen_run(given: Path | None) -> Path:
    """Return the run folder that the user means; says so where it is not the given one."""
    runs = runs_folder()
    if given is not None and not os.path.lexists(given):
        folder, meant = run_named(str(given), runs), f"the run {given}"
    else:
        folder, meant = newest_run(given or runs), f"the newest run in {given or runs}"
    if folder is None:
        if given is None and not any(runs.glob("rank*.jsonl")):
            raise no_runs(runs)
        return given or runs
    say(f"reporting {meant}: {folder}")
    return folder
