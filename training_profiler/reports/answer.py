"""The answer, which ends every report: the verdict, what to change and what that brings, and what to type next."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from training_profiler.base.units import duration_text, unit_of_steps
from training_profiler.diagnosis import Finding
from training_profiler.diagnosis.finding import PROGRAM, Action, brief, record_steps, worst_losses
from training_profiler.diagnosis.lines import IN_WORKERS
from training_profiler.diagnosis.machine import MACHINE_BUSY
from training_profiler.diagnosis.registry import ALONE, row_of, section_of
from training_profiler.diagnosis.rules import HEALTHY, too_little_data
from training_profiler.model.snapshot import Snapshot
from training_profiler.reports.layout import Layout, sentence
from training_profiler.reports.sections import labels_of, table_label
from training_profiler.reports.verdict import GOOD, has_nothing_to_fix, important, saved_share, source_line, verdict

MOST_LINES: Final = 24  # of a terminal of 80 columns, from the verdict to the prompt
WIDEST: Final = 110  # columns; longer lines are harder to read
MARGIN: Final = " " * 10  # of what follows VERDICT
SAVING_FROM: Final = 72  # columns: then a saving stands right of its action
MOST_ACTION_LINES: Final = 3
OF_WHAT: Final = "training", "  saved"  # heads of the part of the training time and the time that an action saves
MOST_COMMANDS: Final = 3


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a report comes from; None is unknown."""

    program: str | None = None
    """What was run: ``train.py``, or the name of a module."""
    folder: str | None = None
    """The run folder as it can be typed in a command."""
    command: str | None = None
    """Program and arguments as they can be typed."""
    earlier: str | None = None
    """The folder of an earlier run of the same program, as it can be typed."""
    is_full: bool = False  # the report: it does not point to a full one then


def answer_of(
    snapshot: Snapshot, findings: Sequence[Finding], layout: Layout, origin: Origin, most: int = MOST_LINES
) -> tuple[list[str], Sequence[Finding]]:
    """Return the lines of the answer, and the findings that it has room for within ``most`` and ``MOST_LINES``."""
    layout = replace(layout, width=min(layout.width, WIDEST))
    changes = important(snapshot, findings)
    shown = len(changes)
    while True:
        lines = [
            *verdict_lines(snapshot, findings, layout),
            *_remarks(snapshot, findings, layout, changes),
            *_blocks(snapshot, changes[:shown], layout, origin),
            *_beside(snapshot, findings, changes, layout),
            *_next(snapshot, findings, changes[:shown], origin, layout),
        ]
        if shown <= 1 or len(lines) < min(most, MOST_LINES):
            return lines, changes[:shown]
        shown -= 1


def verdict_lines(snapshot: Snapshot, findings: Sequence[Finding], layout: Layout) -> list[str]:
    """Return the verdict, what it is based on or what the first action brings, and a change since earlier runs."""
    headline, detail, saving, color = verdict(snapshot, findings)
    begin = len(MARGIN)
    lines = [
        line[:begin] + layout.color(line[begin:], color, is_bold=True)
        for line in layout.wrap(headline, first=" VERDICT  ", rest=MARGIN)
    ]
    lines += layout.wrap(detail, first=MARGIN, rest=MARGIN) if detail else []
    lines += [layout.color(line, color) for line in layout.wrap(saving, MARGIN, MARGIN)] if saving else []
    return lines + (layout.wrap(snapshot.history.text, MARGIN, MARGIN) if snapshot.history is not None else [])


def _blocks(snapshot: Snapshot, changes: Sequence[Finding], layout: Layout, origin: Origin) -> list[str]:
    lines: list[str] = []
    # Ranks that the program forks itself have no number from a launcher.
    is_launched = snapshot.ranks is not None and snapshot.ranks.ranks[0].who.local_rank is not None
    program = "torchrun ... " * is_launched + (origin.command or origin.program or PROGRAM)
    for number, change in enumerate(changes, start=1):
        first, rest = f" {number} ", "   "
        begin = len(lines) + 1
        # The verdict has said what the first finding claims.
        what, where = _after_claim(change.message), _where(snapshot, change)
        if number > 1:
            what = _fitting(change.message, layout.width - len(rest))
        elif where and (not what or where.partition("at ")[2].split()[0] not in what):
            what, where = f"{what}; {where}" if what else where, ""
        head = "" if lines else _head(snapshot, changes, layout)
        lines += [head, *(_cut(layout, what, first, rest) if what else [])]
        if number > 1 and where and where.removeprefix("at ") not in what:
            short, detail, _ = where.partition(": line ")
            lines += _cut(layout, f"{short})" if detail and len(rest + where) > layout.width else where, rest, rest, 1)
        same = next((at for at, before in enumerate(changes[: number - 1], 1) if before.advice == change.advice), None)
        if same is not None:
            lines.append(f"   -> the same change as {same}")
            continue
        for is_other, action in enumerate(change.actions):
            typed = action._replace(text=action.text.replace(PROGRAM, program))
            lines += _action_lines(snapshot, change, typed, layout, "   or " if is_other else "   -> ")
        texts = [f"losses: {losses}"] if (losses := worst_losses_of(change)) else []
        if share := saved_share(snapshot, change, float(change.evidence.get(ALONE, 0.0))):
            texts = ["; ".join([*texts, f"as the only change it can save {share:.0%}"])]
        texts += [f"Tried: {change.tried}"] if change.tried else []
        lines += [line for text in texts for line in _cut(layout, text, "      ", "      ")]
        lines[begin] = first + lines[begin][len(first) :]
    return lines


def _cut(layout: Layout, text: str, first: str, rest: str, most: int = 2) -> list[str]:
    """Return a text in at most so many lines; the last one ends with dots where there is more."""
    lines = layout.wrap(text, first=first, rest=rest)
    if len(lines) <= most:
        return lines
    last = lines[most - 1] if len(lines[most - 1]) <= layout.width - 3 else lines[most - 1].rpartition(" ")[0]
    return [*lines[: most - 1], f"{last} .."]


def _fitting(message: str, room: int) -> str:
    """Return the message, its claim with the figures behind it, or the claim alone: the first that fits on a line."""
    claim, figures = brief(message), _after_claim(message).partition("; ")[0]
    return next((text for text in (message, f"{claim} ({figures})") if figures and len(text) <= room), claim)


def _after_claim(message: str) -> str:
    """Return what follows the claim of a message: "data_loading: 74.8 ms per step; above all in data.py:14"."""
    rest = message[len(brief(message)) :].lstrip()
    figures, closed, more = rest[1:].partition(")")
    if more.startswith(": "):  # what stands in parentheses only names what the claim is about
        return more[2:]
    return figures + more if rest.startswith("(") and closed and "(" not in figures else rest.lstrip(":; ")


def _where(snapshot: Snapshot, finding: Finding) -> str:
    """Return the line of the user's code with most of a finding's time, and its share; "" where none is known."""
    place = source_line(snapshot, finding)
    if place is not None:
        line, share = place
        section = table_label(section_of(finding) or "", snapshot.sections, labels_of(snapshot)[0])
        return f"{share:.0%} of {section} at {line.place} {line.what}"
    lines = str(finding.evidence.get(IN_WORKERS) or finding.evidence.get("lines") or "")
    first, more, _ = lines.partition("), ")
    return f"at {first}{')' * bool(more)}" if lines else ""


def _head(snapshot: Snapshot, changes: Sequence[Finding], layout: Layout) -> str:
    """Return what the figures right of actions are; "" where none stand there."""
    shown = [cells for each in changes for action in each.actions if (cells := saving_cells(snapshot, each, action))]
    if layout.width < SAVING_FROM or not shown:
        return ""
    return _in_columns(["a step" * any(step for step, *_ in shown), *OF_WHAT]).rjust(layout.width)


def _in_columns(cells: Sequence[str]) -> str:
    return "  ".join([cells[0], *(cell.rjust(len(head)) for cell, head in zip(cells[1:], OF_WHAT, strict=True))])


def _action_lines(snapshot: Snapshot, finding: Finding, action: Action, layout: Layout, first: str) -> list[str]:
    """Return an action with what it alone saves: right of it, or below it where it would need another line."""
    text, cells = action_text(finding, action), saving_cells(snapshot, finding, action)
    if not cells:
        return _cut(layout, text, first, "      ", MOST_ACTION_LINES)
    if layout.width < SAVING_FROM:
        below = layout.wrap("  ".join(filter(None, cells)), first="      ", rest="      ")
        return _cut(layout, text, first, "      ", MOST_ACTION_LINES) + [layout.color(line, "green") for line in below]
    saving = _in_columns(cells).strip()
    space = layout.width - len(saving)
    lines = _cut(layout, text, first, "      ", MOST_ACTION_LINES)  # what is typed stays on a line, where it fits
    lines += [""] * (len(lines[-1]) > space - 2)
    beside = _cut(replace(layout, width=space - 2), text, first, "      ", MOST_ACTION_LINES)
    lines = beside if len(beside) < len(lines) else lines
    lines[-1] = f"{lines[-1]:<{space}}" + layout.color(saving, "green")
    return lines


def action_text(finding: Finding, action: Action) -> str:
    """Return what to type, with the place of the call whose arguments it changes, where that is known."""
    call = str(finding.evidence.get("call", "")).partition(": ")[0]
    return f"{action.text}  at {call}" if call and "(..." in action.text and call not in action.text else action.text


def worst_losses_of(finding: Finding) -> str:
    """Return what the actions of a finding do to the losses at most; "" where that is not known."""
    changes = [change for action in finding.actions for change in action.changes]
    return "" if finding.code == MACHINE_BUSY else worst_losses(changes)


def saving_cells(snapshot: Snapshot, finding: Finding, action: Action) -> list[str]:
    """Return what an action saves: a step before and after it, its part of the training time, and time of this run.

    The start of the program is left out of that part. A cell is "" where it is not known; none where nothing is.
    """
    seconds = action.part * finding.potential_saving_s
    if not seconds or finding.code == MACHINE_BUSY:
        return []
    step = ""
    if finding.step_s is not None and finding.step_if_fixed_s is not None:
        after_s = finding.step_s - action.part * (finding.step_s - finding.step_if_fixed_s)
        unit, number = unit_of_steps(finding.step_s)
        step = f"{number(finding.step_s)} -> {number(after_s)} {unit}"
    share = saved_share(snapshot, finding, action.part)
    return [step, f"{action.up_to}{-share:.0%}" if share else "", duration_text(seconds)]


def _remarks(snapshot: Snapshot, findings: Sequence[Finding], layout: Layout, changes: Sequence[Finding]) -> list[str]:
    """Return what is true of a run without a bottleneck."""
    if changes:
        return []
    # The verdict says that a healthy run is one; what it adds to that stands behind the figures.
    said = {each.code: each.message for each in findings if not each.fix}
    texts = [sentence(text.partition("; ")[2]) if code == HEALTHY else text for code, text in said.items()]
    lines = [line for text in texts if text for line in layout.wrap(text, first=" - ", rest="   ")]
    return ["", *lines] if lines else []


def _beside(snapshot: Snapshot, findings: Sequence[Finding], changes: Sequence[Finding], layout: Layout) -> list[str]:
    """Return a line on a busy machine that cost less than what else is found."""
    busy = next((each for each in findings if each.code == MACHINE_BUSY and each not in changes), None)
    if busy is None or not changes:
        return []
    share = busy.potential_saving_s / snapshot.wall_s if snapshot.wall_s else 0.0
    return ["", *layout.wrap(f"{brief(busy.message)}: {share:.0%} of this run", first="   ", rest="   ")]


def _next(
    snapshot: Snapshot, findings: Sequence[Finding], shown: Sequence[Finding], origin: Origin, layout: Layout
) -> list[str]:
    """Return at most three commands that fit this run."""
    if origin.folder is None:
        return []
    command = None if snapshot.ranks is not None else origin.command or origin.program
    more = [each for each in findings if each.fix and not has_nothing_to_fix(each) and each not in shown]
    what = f"{len(more)} more" if more else "figures"
    full = [] if origin.is_full else [(what, f"training-profiler report --full {origin.folder}")]
    commands, (headline, _, _, color) = [*full] if more else [], verdict(snapshot, findings)
    # What ended by a crash would do so again.
    if command and not headline.startswith("ENDED BY") and any(row_of(each).try_ for each in shown):
        commands.append(("prove it", f"training-profiler try {command}"))
    if command and color == GOOD and not snapshot.ended_by:  # then operators matter most
        commands.append(("operators", record_steps(snapshot.steps).text.replace(PROGRAM, command)))
    if origin.earlier is not None and not too_little_data(snapshot):
        commands.append(("compare", f"training-profiler compare {origin.earlier} {origin.folder}"))
    commands.append(("web page", f"training-profiler html {origin.folder}"))
    commands += [] if more else full
    width = max(len(what) for what, _ in commands[:MOST_COMMANDS])
    if layout.width < SAVING_FROM:
        return ["", *(line for what, text in commands[:MOST_COMMANDS] for line in (f" {what}:", f"   {text}"))]
    return ["", *(f" {what:<{width}}  {text}" for what, text in commands[:MOST_COMMANDS])]
