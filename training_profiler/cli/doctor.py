"""Check this machine: versions, settings in force, trackers, patches, what profiling costs here, where runs go.

Put its output into a report of a problem. It exits with 1 if something would keep the profiler from working.
"""

import argparse
import json

from training_profiler.base.text import one_line, printable, printable_data
from training_profiler.cli.common import write
from training_profiler.reports.layout import Layout
from training_profiler.runtime.checkup import CheckupPart, check_up


def prepare_parser(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument("--json", action="store_true", help="print a JSON object instead of text")


def run(arguments: argparse.Namespace) -> int:
    """Print the checkup; return 1 if there is a problem, else 0."""
    sections = list(check_up())
    problems = [one_line(problem) for section in sections for problem in section.problems]
    if arguments.json:
        data = {section.title: dict(section.rows) for section in sections}
        text = json.dumps(printable_data(data) | {"problems": problems}, indent=1) + "\n"
    else:
        summary = (
            f"{len(problems)} problem{'s' * (len(problems) != 1)} found, marked with an exclamation mark.\n"
            if problems
            else "No problem found. If something is wrong all the same, put these lines into your\nreport of it.\n"
        )
        text = "\n".join([*map(_text, sections), summary])
    write(text)
    return 1 if problems else 0


def _text(section: CheckupPart) -> str:
    names = [f"  {printable(name)}" for name, _ in section.rows]
    width = max(map(len, names), default=0) + 2
    lines = [section.title]
    for name, (_, value) in zip(names, section.rows, strict=True):
        lines += Layout().wrap(one_line(value), first=f"{name:<{width}}", rest=" " * width)
    for problem in section.problems:
        lines += Layout().wrap(one_line(problem), first="  ! ", rest="    ")
    return "\n".join(lines) + "\n"
