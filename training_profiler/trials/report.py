"""What trials have shown: the table of a session, and what the findings of a run say of their fixes."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Final

from training_profiler.base.units import bytes_text, counted, duration_text, ms_text, of_training, unit_of_steps
from training_profiler.diagnosis.finding import Finding
from training_profiler.reports.layout import Layout, column_width, fitting, shortened, table
from training_profiler.trials.results import (
    APART,
    FAILED,
    FASTER,
    IDENTICAL,
    NO_VERDICT,
    NOT_CONFIRMED,
    NOT_REPEATABLE,
    NOT_SHOWN,
    NOT_TRIED,
    SLOWER,
    UNDECIDED,
    UNKNOWN,
    LossComparison,
    Results,
    Row,
    best_of_each,
)
from training_profiler.trials.statistics import differ
from training_profiler.trials.treatments import EXCLUSIVE, worth_trying

PER_STEPS: Final = 1000  # where the length of the training is unknown
LEAST_LABEL: Final = 18
LONG_WARMUP_S: Final = 3.0
HEADERS: Final = ("change", "step", "gain (95% interval)", "losses", "where")


def render_results(results: Results, run: str, layout: Layout) -> str:
    """Return what a session has found, as text. ``run`` is the run folder as it can be typed."""
    count = len(results.tried)
    changes = "1 change" if count == 1 else f"{count} changes"
    stopped = ", stopped early" if results.is_interrupted else ""
    lines = [f"=== Tried on {results.program}: {changes}, {duration_text(results.seconds)}{stopped} ==="]
    if results.unchanged_step_s is not None or results.rows:
        lines += _table(results, layout)
    lines += _answer(results, run, layout)
    if results.remaining:
        lines += layout.wrap(f"Not finished: {', '.join(results.remaining)}.")
        lines.append(f"To go on: training-profiler try --resume {run}")
    lines += [line for note in results.notes for line in layout.wrap(note, "- ")]
    return "\n".join(lines) + "\n"


def _in_order(results: Results) -> list[Row]:
    tried = [row for row in results.rows if row.effect is not None and row.verdict != FAILED]
    tried.sort(key=lambda row: 0.0 if row.effect is None else row.effect.relative)
    others = _folded([row for row in results.rows if row not in tried])
    control = [] if results.control is None else [results.control]
    return [*tried, *control, *others, *([] if results.together is None else [results.together])]


def _folded(rows: list[Row]) -> list[Row]:
    """Return the rows; those of one kind that were not tried for the same reason are one."""
    by_reason: dict[tuple[str, str, str], list[Row]] = {}
    for row in rows:
        by_reason.setdefault((row.family, row.verdict, row.reason), []).append(row)
    return [
        same[0] if len(same) == 1 or verdict != NOT_TRIED else replace(same[0], name=name, label=name)
        for (family, verdict, _), same in by_reason.items()
        for name in [", ".join([same[0].name, *(row.name.removeprefix(f"{family}=") for row in same[1:])])]
    ]


def _table(results: Results, layout: Layout) -> list[str]:
    rows = _in_order(results)
    unchanged_s = results.unchanged_step_s
    labels = [row.label if row is not results.control else f"{row.label} (the noise)" for row in rows]
    cells = [_cells(row, label, unchanged_s) for row, label in zip(rows, labels, strict=True)]
    all_cells = [["unchanged", "-" if unchanged_s is None else ms_text(unchanged_s), "", "", ""], *cells]
    kept = list(range(len(HEADERS)))
    if not layout.is_lines:
        least = min(LEAST_LABEL, layout.width // 3)
        kept = fitting(HEADERS, all_cells, layout.width, (4, 3, 1), least)
        others = sum(column_width(HEADERS[column], [each[column] for each in all_cells]) for column in kept[1:])
        room = max(least, layout.width - others)
        for row, each in zip(rows, cells, strict=True):
            name = row.name if len(each[0]) > room and len(row.name) < len(each[0]) else each[0]
            each[0] = shortened(name, room)
    left = [at for at, column in enumerate(kept) if column != 1]
    text = table([HEADERS[at] for at in kept], [[each[at] for at in kept] for each in all_cells], left)
    lines = text[:2]
    for row, line in zip(rows, text[2:], strict=True):
        is_left = row.verdict in (NOT_SHOWN, NOT_CONFIRMED) and row.name in results.remaining
        remark = "not finished" if is_left else _remark(row)
        if row is results.together and row.effect is not None and results.unconfirmed:
            remark = "; ".join(filter(None, (remark, f"with {' and '.join(results.unconfirmed)}, not confirmed alone")))
        if row.effect is None:
            lines += layout.wrap(remark, f"{line}  ", " " * (len(line) + 2))
        elif remark and len(line) + 2 + len(remark) <= layout.width:
            lines.append(f"{line}  {remark}")
        else:
            lines += [line, *layout.wrap(remark, "    ", "    ")] if remark else [line]
    return lines


def _cells(row: Row, label: str, unchanged_s: float | None) -> list[str]:
    if row.effect is None or row.step_s is None:
        return [label, "-", "", "", ""]
    losses = "-" if row.losses is None else str(row.losses)
    # The effect is measured in pairs: a step is that much of the unchanged one, whatever the machine did meanwhile.
    step_s = row.step_s if unchanged_s is None else unchanged_s * (1 + row.effect.relative)
    return [label, ms_text(step_s), str(row.effect), losses, row.where]


def _remark(row: Row) -> str:
    """Return what the figures of a row do not say."""
    verdict = f"{row.verdict}: {row.reason}" if row.reason else row.verdict
    if row.effect is None or row.verdict == FAILED:
        return verdict
    parts = [] if row.verdict == FASTER or row.name.startswith("unchanged") else [verdict]
    if row.is_ceiling:
        parts.append("a ceiling: no edit has this")
    elif row.changes_numerics:
        parts.append("changes the numerics")
    total = row.effect.total
    if total is not None and not row.effect.low <= total <= row.effect.high:
        parts.append(f"{total:+.1%} in all blocks together")
    if row.compile_s:
        parts.append(_compiling_text(row))
    elif row.family.startswith("compile"):
        parts.append("nothing was compiled")
    elif row.warmup_s >= LONG_WARMUP_S and row.verdict in (FASTER, SLOWER):
        parts.append(f"{duration_text(row.warmup_s)} longer to start")
    return "; ".join(parts)


def _compiling_text(row: Row) -> str:
    paid = f", paid back after {row.break_even_steps:,} steps" if row.break_even_steps else ""
    return f"compiles for {duration_text(row.compile_s)}, {counted(row.recompilations, 'recompilation')}{paid}"


def _answer(results: Results, run: str, layout: Layout) -> list[str]:
    best = results.best
    if best is None or best.effect is None or results.unchanged_step_s is None:
        tried = [row for row in results.rows if row.verdict != NOT_TRIED]
        so_far = " so far" if results.remaining else ""
        return [f"No change is shown to help{so_far}."] if tried else []
    steps, step_s = results.total_steps or PER_STEPS, results.unchanged_step_s
    before_s = steps * step_s
    after_s = before_s * (1 + best.effect.relative) + best.warmup_s
    whose = f"This run of {steps:,} steps" if results.total_steps else f"{steps:,} steps"
    times = f"{duration_text(after_s)} instead of {duration_text(before_s)}"
    lines = layout.wrap(f"{whose} would take {times}, with {' and '.join(results.best_names)}.")
    if results.part_in_steps is not None and after_s < before_s:
        share, (unit, number) = results.part_in_steps * (1 - after_s / before_s), unit_of_steps(step_s)
        saved = of_training(share, before_s - after_s, "this run" if results.total_steps else f"{steps:,} steps")
        after_step_s = step_s * (1 + best.effect.relative)
        lines += layout.wrap(f"{number(step_s)} -> {number(after_step_s)} {unit}: {saved} saved.")
    saved_s = (before_s - after_s + best.warmup_s) / steps
    if saved_s > 0:
        paid_after = (results.seconds + best.warmup_s) / saved_s
        lines += layout.wrap(f"What the trials took is paid back after {paid_after:,.0f} steps.")
    return [*lines, f"The edit: training-profiler try --show-diff {run}"]


CHANGE_HEADERS: Final = ("", "step", "gain (95% interval)", "losses", "memory")


def render_change(results: Results, name: str, base: str, layout: Layout) -> str:
    """Return what a session about one change of the user's has found, as text."""
    (row,), control = results.rows, results.control
    stopped = ", stopped early" if results.is_interrupted else ""
    lines = [f"=== {name} on {results.program}: {duration_text(results.seconds)}{stopped} ==="]
    unit = unit_of(results)
    if row.effect is not None:
        cells = [
            [*_cells(each, each.label, results.unchanged_step_s)[:4], _memory_text(each)]
            for each in (row, control)
            if each is not None
        ]
        step = "-" if results.unchanged_step_s is None else ms_text(results.unchanged_step_s)
        first = [base, step, "", "", _memory_text(control or row)]
        headers = [(unit if at == 1 else head) for at, head in enumerate(CHANGE_HEADERS)]
        kept = fitting(headers, [first, *cells], layout.width, (4, 3, 1))
        left = [at for at, column in enumerate(kept) if column != 1]
        lines += table([headers[at] for at in kept], [[each[at] for at in kept] for each in (first, *cells)], left)
    lines += layout.wrap(change_verdict(row, unit))
    lines += [line for fact in facts_of_row(row) for line in layout.wrap(fact)]
    if control is not None and control.compile_s:
        lines += layout.wrap(f"Without the change, it {_compiling_text(control)}")
    lines += [line for note in results.notes for line in layout.wrap(note, "- ")]
    return "\n".join(lines) + "\n"


def unit_of(results: Results) -> str:
    """Return of what times are compared."""
    row, control = results.rows[0], results.control
    return "sample" if control is not None and differ(row.samples, control.samples) else "step"


def facts_of_row(row: Row) -> list[str]:
    """Return what a change does to the losses, and how long it compiles, in sentences."""
    losses = [] if row.losses is None or row.losses.kind == UNKNOWN else [_losses_text(row.losses)]
    return losses + [f"With the change, it {_compiling_text(row)}"] * (row.compile_s > 0)


def _memory_text(row: Row) -> str:
    return bytes_text(row.memory_bytes) if row.memory_bytes else "-"


def change_verdict(row: Row, unit: str = "step") -> str:
    """Return in a sentence what a change does to the time of a step, or of a sample."""
    effect = row.effect
    if row.verdict == FAILED:
        return f"FAILED with the change: {row.reason}"
    if effect is None or row.verdict == UNDECIDED:
        return f"UNDECIDED: {'' if effect is None else f'{effect} a {unit}; '}{row.reason}"
    low, high = sorted((abs(effect.low), abs(effect.high)))
    if row.verdict in (FASTER, SLOWER):
        less = "less" if row.verdict == FASTER else "more"
        return f"{row.verdict.upper()}: a {unit} takes {abs(effect.relative):.1%} {less} ({low:.1%} to {high:.1%})"
    return f"NO DIFFERENCE larger than {high:.1%} of a {unit}"


def _losses_text(losses: LossComparison) -> str:
    if losses.kind == IDENTICAL:
        return f"Losses: identical, bit for bit, in {losses.steps:,} steps"
    if losses.kind == NOT_REPEATABLE:
        return f"Losses: two trainings without the change differ as well, from step {losses.first_step} on"
    how = "by rounding" if losses.kind == APART else "by more than rounding"
    size = "" if losses.max_difference is None else f" ({losses.max_difference:.0e} of them)"
    return f"Losses: differ {how} from step {losses.first_step} on{size}"


PREDICTED: Final = "would not help"
WITHOUT_GAIN: Final = (NOT_SHOWN, NOT_CONFIRMED, SLOWER, UNDECIDED, NO_VERDICT, FAILED)


def with_trials(findings: Iterable[Finding], results: Results | None) -> list[Finding]:
    """Return the findings; each whose fix was tried says what that brought."""
    rows = [] if results is None else results.tried
    return [replace(each, tried=_text(_rows_of(each, rows), each.fix)) if each.fix else each for each in findings]


def _rows_of(finding: Finding, rows: Iterable[Row]) -> list[Row]:
    """Return the changes that may be the fix; ceilings only where nothing else was tried."""
    families = worth_trying(finding)
    rows = [row for row in rows if row.family in families]
    return [row for row in rows if not row.is_ceiling] or rows


def _text(rows: Sequence[Row], fix: str) -> str:
    gains = best_of_each((row for row in rows if row.verdict == FASTER), EXCLUSIVE)
    if gains:
        shown = ", ".join(f"{row.name} {row.effect}{' (a ceiling)' * row.is_ceiling}" for row in gains)
        # Such as "Workers would not help", which is predicted from CPU times.
        is_against = PREDICTED in fix and any(not row.is_ceiling for row in gains)
        return f"{shown}, which was measured, unlike the prediction" if is_against else shown
    names = {verdict: [row.name for row in rows if row.verdict == verdict] for verdict in WITHOUT_GAIN}
    return "; ".join(f"{verdict} ({', '.join(same)})" for verdict, same in names.items() if same)
