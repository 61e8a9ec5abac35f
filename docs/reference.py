"""Write docs/reference/commands.md, and tables and thresholds of other pages, from the code, or check them.

    python docs/reference.py            # write them, after a change to a command, setting, section, rule or tracker
    python docs/reference.py --check    # exit status 1 if a file differs; `make docs` runs this

The rest of the reference is written by people; tests/docs compares it with the code.
"""

import argparse
import ast
import json
import re
import sys
import textwrap
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from training_profiler.base.sections import DATA_LOADING, FREE, KNOWN_SECTIONS, OTHER, PROFILER
from training_profiler.base.trackers import TRACKERS, Tracker
from training_profiler.cli import COMMANDS, command_module
from training_profiler.cli import trace as trace_command
from training_profiler.diagnosis import THRESHOLDS
from training_profiler.diagnosis.finding import ADVISED, Change
from training_profiler.model.snapshot import OUTSIDE_STEPS
from training_profiler.reports.report_json import report_schema
from training_profiler.settings import settings
from training_profiler.trials.results import Results
from training_profiler.trials.treatment import Treatment
from training_profiler.trials.treatments import TREATMENTS

FOLDER = Path(__file__).parent / "reference"
TREATMENTS_PAGE = FOLDER / "treatments.md"
COMMANDS_PAGE, SETTINGS_PAGE, SECTIONS_PAGE = FOLDER / "commands.md", FOLDER / "settings.md", FOLDER / "sections.md"
RULES_PAGE, TRACE_RULES_PAGE = FOLDER / "rules.md", FOLDER / "trace-rules.md"
GUIDE = FOLDER.parents[1] / "PROFILING.md"
CONTRIBUTING = GUIDE.with_name("CONTRIBUTING.md")
PACKAGE = CONTRIBUTING.parent / "training_profiler"
REPORT_SCHEMA = FOLDER / "report.schema.json"
JSON_PAGE = FOLDER / "json.md"
EXAMPLE = GUIDE.parent / "tests" / "golden" / "0.2.0-loaders" / "report.json"  # as this version writes it
TRACKERS_PAGE = FOLDER.parent / "frameworks" / "trackers.md"
PROGRAM = "training-profiler"
WIDTH = 110
WIDEST = 130  # of a row in a table
HEAD = """\
# Commands

<!-- Written by docs/reference.py from the parsers of the command line: do not edit. -->

Every command is a subcommand of `training-profiler`; `python -m training_profiler` is the same program.
A command exits with status 0, or with 2 and one line on stderr if it cannot use its input.
`run` exits with the status of your program.

| command | purpose |
| --- | --- |
"""


TABLE_HEAD = "| setting | default | meaning |\n| --- | --- | --- |\n"
VARIABLES_HEAD = "| variable | default | meaning |\n| --- | --- | --- |\n"
COMMANDS_HEAD = "| command | purpose |\n| --- | --- |\n"
SECTIONS_HEAD = "| section | kind | meaning |\n| --- | --- | --- |\n"
# Rows of reports that are not sections of the program.
OWN_ROWS = {
    OTHER: "step time that no section covers; on the screen `unattributed (in step)`",
    OUTSIDE_STEPS: "time in no step and no section; on the screen `startup & between steps`",
    PROFILER: "the profiler's own work; on the screen `profiler overhead`",
}
TREATMENTS_HEAD = "| family | change | losses |\n| --- | --- | --- |\n"
CEILINGS_HEAD = "| family | ceiling |\n| --- | --- |\n"
ADVISED_HEAD = "| change | losses |\n| --- | --- |\n"
STAGES_HEAD = "| stage | what it knows | what it never does |\n| --- | --- | --- |\n"
# The modules that have the docstrings of folders without `__init__.py`.
SPEAKERS = {"bootstrap": "training_profiler_hook", "runtime": "session"}
TRACKERS_HEAD = "| tracker | install | what it receives |\n| --- | --- | --- |\n"


def pages() -> dict[Path, str]:
    """Return the text of each page that is written here, whole or in part."""
    settings_rows, trackers_rows = map(_row, settings.describe()), map(_tracker_row, TRACKERS.values())
    return {
        GUIDE: guide(),
        CONTRIBUTING: stages(),
        COMMANDS_PAGE: commands_page(),
        SETTINGS_PAGE: with_table(SETTINGS_PAGE, TABLE_HEAD, settings_rows),
        SECTIONS_PAGE: with_table(SECTIONS_PAGE, SECTIONS_HEAD, _section_rows()),
        RULES_PAGE: with_thresholds(RULES_PAGE, THRESHOLDS),
        TRACE_RULES_PAGE: with_thresholds(TRACE_RULES_PAGE, trace_command.THRESHOLDS),
        TRACKERS_PAGE: with_table(TRACKERS_PAGE, TRACKERS_HEAD, trackers_rows),
        TREATMENTS_PAGE: treatments_page(),
        JSON_PAGE: with_example(JSON_PAGE),
        REPORT_SCHEMA: json.dumps(report_schema(Results), indent=1) + "\n",
    }


def guide() -> str:
    """Return the text of PROFILING.md: three of its tables are written here."""
    text = GUIDE.read_text(encoding="utf-8")
    for table_head, rows in (
        (VARIABLES_HEAD, map(_variable_row, settings.describe())),
        (COMMANDS_HEAD, map(_command_row, COMMANDS)),
        (SECTIONS_HEAD, _section_rows()),
    ):
        text = replaced_table(GUIDE, text, table_head, rows)
    return text


def _variable_row(row: settings.SettingDescription) -> str:
    return _within_width(f"| `{row.variable}` | {_default(row)} | ", row.meaning)


def _command_row(name: str) -> str:
    """Return a row with the summary's first words: the page of the command has all of them."""
    summary = re.split("[:,] ", _summary(name).removesuffix("."))[0]
    return f"| `{name}` | {summary} |"


def _section_rows() -> Iterator[str]:
    for section in KNOWN_SECTIONS:
        kind = "" if section.kind == FREE else section.kind + " "
        yield f"| `{section.name}` | {kind}| {section.meaning} |"
    for name, meaning in OWN_ROWS.items():
        yield f"| `{name}` | | {meaning} |"


def with_thresholds(page: Path, thresholds: Mapping[str, float]) -> str:
    """Return the text of a page of rules with the thresholds of the code; each rule has a heading, and no other has."""
    text = page.read_text(encoding="utf-8")
    rule = re.compile(r"^### ([\w-]+)\n\n- \*\*Threshold:\*\* \S+$", re.M)
    if different := set(rule.findall(text)) ^ set(thresholds):
        raise SystemExit(f"{page.name} and the code have different rules: {', '.join(sorted(different))}")
    return rule.sub(lambda found: f"### {found[1]}\n\n- **Threshold:** {thresholds[found[1]]:g}", text)


def treatments_page() -> str:
    """Return the text of docs/reference/treatments.md: three of its tables are written here."""
    by_family: dict[str, list[Treatment]] = {}
    for treatment in TREATMENTS:
        by_family.setdefault(treatment.family, []).append(treatment)
    tried = [each for each in by_family.values() if not each[0].ceiling]
    ceilings = [f"| `{each[0].family}` | {each[0].label} |" for each in by_family.values() if each[0].ceiling]
    text = TREATMENTS_PAGE.read_text(encoding="utf-8")
    for table_head, rows in (
        (TREATMENTS_HEAD, map(_treatment_row, tried)),
        (CEILINGS_HEAD, ceilings),
        (ADVISED_HEAD, map(_change_row, ADVISED)),
    ):
        text = replaced_table(TREATMENTS_PAGE, text, table_head, rows)
    return text


def with_example(page: Path) -> str:
    """Return the text of the page about JSON with a part of a real report."""
    report = json.loads(EXAMPLE.read_text(encoding="utf-8"))
    part = {key: report[key] for key in ("schema", "schema_changes", "verdict", "steps", "wall_s")}
    part |= {"sections": {DATA_LOADING: report["sections"][DATA_LOADING]}, "findings": report["findings"][:1]}
    before, _, rest = page.read_text(encoding="utf-8").partition("```json\n")
    return f"{before}```json\n{json.dumps(part, indent=1)}\n```{rest.partition('```')[2]}"


def _treatment_row(treatments: list[Treatment]) -> str:
    first, *others = treatments
    more = "".join(f", {other.name.partition('=')[2]}" for other in others)
    return f"| `{first.family}` | `{first.label}`{more} | {first.effect} |"


def _change_row(change: Change) -> str:
    return f"| {change.label} | {change.text} |"


def with_table(page: Path, table_head: str, rows: Iterable[str]) -> str:
    """Return the text of a page with one of its tables as the code has it."""
    return replaced_table(page, page.read_text(encoding="utf-8"), table_head, rows)


def replaced_table(page: Path, text: str, table_head: str, rows: Iterable[str]) -> str:
    """Return ``text`` of a page with one of its tables as the code has it."""
    head, mark, rest = text.partition(table_head)
    if not mark:
        raise SystemExit(f"{page.name} has no such table: {table_head!r}")
    _, _, after = rest.partition("\n\n")
    return head + table_head + "\n".join(rows) + "\n\n" + after


def stages() -> str:
    """Return CONTRIBUTING.md with what each stage says of itself, in the order that it has there."""
    text = CONTRIBUTING.read_text(encoding="utf-8")
    names = re.findall(r"^\| `(\w+)` \|", text.partition(STAGES_HEAD)[2].partition("\n\n")[0], re.M)
    return replaced_table(CONTRIBUTING, text, STAGES_HEAD, map(_stage_row, names))


def _stage_row(name: str) -> str:
    folder = PACKAGE / name
    path = folder / f"{SPEAKERS.get(name, '__init__')}.py" if folder.is_dir() else folder.with_suffix(".py")
    paragraph = (ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or "").partition("\n\n")[0]
    knows, _, never = paragraph.replace("\n", " ").replace("``", "`").partition(" Never: ")
    return f"| `{name}` | {knows.rstrip('.')} | {never.rstrip('.')} |".replace("|  |", "| |")


def _tracker_row(tracker: Tracker) -> str:
    install = "nothing" if tracker.extra is None else f"`training-profiler[{tracker.extra}]`"
    return f"| `{tracker.name}` | {install} | {tracker.receives} |"


def _row(row: settings.SettingDescription) -> str:
    return _within_width(f"| [`{row.argument}`](#{row.argument}) | {_default(row)} | ", row.meaning)


def _within_width(head: str, meaning: str) -> str:
    """Return a row of a table; a meaning that is too long ends at its last comma."""
    is_long = len(head) + len(meaning) + 2 > WIDEST
    return f"{head}{meaning.rpartition(', ')[0] if is_long else meaning} |"


def _default(row: settings.SettingDescription) -> str:
    return row.default if row.default in ("none", "on request") else f"`{row.default}`"


def commands_page() -> str:
    """Return the text of docs/reference/commands.md."""
    rows = "".join(f"| [`{name}`](#{name}) | {_summary(name)} |\n" for name in COMMANDS)
    return HEAD + rows + "".join(f"\n{_section(name)}" for name in COMMANDS)


def _documentation(name: str) -> str:
    return (command_module(name).__doc__ or "").strip()


def _summary(name: str) -> str:
    return _documentation(name).splitlines()[0]


def _section(name: str) -> str:
    parser = argparse.ArgumentParser(prog=f"{PROGRAM} {name}")
    command_module(name).prepare_parser(parser)
    actions = [action for action in parser._actions if "--help" not in action.option_strings]
    lines = [f"## {name}", "", _documentation(name), "", "```text", _usage(parser, actions), "```", ""]
    for action in actions:
        text = f"{_synopsis(action)}: {' '.join((action.help or '').split()).replace('%%', '%')}"
        lines += textwrap.wrap(text, WIDTH, initial_indent="- ", subsequent_indent="  ", break_on_hyphens=False)
    return "\n".join(lines).rstrip() + "\n"


def _usage(parser: argparse.ArgumentParser, actions: list[argparse.Action]) -> str:
    if parser.usage:
        return parser.usage
    options = [action for action in actions if action.option_strings]
    positionals = [action for action in actions if not action.option_strings]
    words = [f"[{_words(action)}]" for action in options]
    words += [f"[{_value(action)}]" if action.nargs == "?" else _value(action) for action in positionals]
    indent = " " * (len(parser.prog) + 1)
    return textwrap.fill(
        f"{parser.prog} {' '.join(word.replace(' ', chr(160)) for word in words)}",
        90,
        subsequent_indent=indent,
        break_on_hyphens=False,
        break_long_words=False,
    ).replace(chr(160), " ")


def _words(action: argparse.Action) -> str:
    """Return an option with its value, such as ``--attempt N``."""
    name = " | ".join(action.option_strings)
    if action.nargs == 0:
        return name
    return f"{name} [{_value(action)}]" if action.nargs == "?" else f"{name} {_value(action)}"


def _value(action: argparse.Action) -> str:
    if isinstance(action.metavar, str):
        return action.metavar
    return action.dest.upper()


def _synopsis(action: argparse.Action) -> str:
    words = _words(action) if action.option_strings else _value(action)
    choices = f", one of {', '.join(f'`{choice}`' for choice in action.choices)}" if action.choices else ""
    return f"`{words}`{choices}"


def main(words: list[str]) -> int:
    """Write the pages, or with ``--check`` return 1 if one is out of date."""
    if words not in ([], ["--check"]):
        sys.stderr.write(__doc__ or "")
        return 2
    status = 0
    for path, text in pages().items():
        if not words:
            path.write_text(text, encoding="utf-8")
        elif not path.is_file() or path.read_text(encoding="utf-8") != text:
            sys.stderr.write(f"{path.relative_to(CONTRIBUTING.parent)} is out of date; run: python docs/reference.py\n")
            status = 1
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
