"""Two runs, compared: as text for people, and as data."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from training_profiler.base.text import printable_data
from training_profiler.base.units import MS_PER_S, ms_text, of_training, unit_of_steps
from training_profiler.reports.layout import Layout, fitting, sentence, shortened, table
from training_profiler.reports.sections import table_label
from training_profiler.statistics.compare import (
    FASTER,
    NOT_SHOWN,
    SECTIONS_LEVEL,
    SLOWER,
    Comparison,
    SectionDifference,
)
from training_profiler.statistics.differences import Differing, LineDifference
from training_profiler.statistics.run_series import BUSY_FROM, SettledSteps

SCHEMA: Final = 2  # 1 had other keys, which docs/reference/json.md lists
LEAST_ROW: Final = 0.001  # of a step: shorter sections have no row of their own
MOST_ROWS: Final = 20
NAME_WIDTH: Final = 26
HEADERS: Final = ("per step", "before", "after", "change", "interval", "")
MOST_DIFFERING: Final = 30
TOGETHER: Final = f"the intervals of the sections hold together at {SECTIONS_LEVEL:.0%}"
VERDICT_COLORS: Final = {FASTER: "green", SLOWER: "red", NOT_SHOWN: "yellow"}


@dataclass(frozen=True, slots=True)
class ComparedRuns:
    """A comparison, and the facts about the two runs."""

    before: str  # folder of the run as typed, and its name
    after: str
    comparison: Comparison
    lines: dict[str, LineDifference]  # by section that carries the difference
    differing: Sequence[Differing]
    notes: Sequence[str]
    programs: tuple[str | None, str | None] = (None, None)  # script or module of each
    saving_s: float | None = None  # of the training time of the run before; below 0 of slower steps; None: not shown
    saving_share: float | None = None  # the same as a part of that time

    @property
    def other_program(self) -> str:
        """A sentence if the runs are of two programs; "" if they are not, or if that is unknown."""
        before, after = self.programs
        if before is None or after is None or before == after:
            return ""
        return (
            f"Two programs: {before} before, {after} after. Their steps may be different work: then faster or slower "
            "is not the effect of a change."
        )


def render_comparison(runs: ComparedRuns, layout: Layout) -> str:
    """Return the comparison as text."""
    (headline, details), verdict = verdict_words(runs), runs.comparison.verdict
    first, *rest = layout.wrap(headline, rest="")
    shown = layout.color(verdict.upper(), VERDICT_COLORS[verdict], is_bold=True)
    lines = [
        "=== Comparison ===",
        f"before: {runs.before}",
        f"after:  {runs.after}",
        "",
        first.replace(verdict.upper(), shown, 1),
        *rest,
        *(line for each in details for line in layout.wrap(each)),
        "",
        *_table(runs.comparison, layout),
        "",
        *(line for note in (f"* beyond chance; {TOGETHER}", *notes_on(runs)) for line in layout.wrap(note, "- ")),
        "",
        *_differing(runs.differing, layout),
    ]
    return "\n".join(lines) + "\n"


def verdict_words(runs: ComparedRuns) -> tuple[str, list[str]]:
    """Return whether a difference of the steps is shown, with its size; and what carries it, or why none is shown."""
    comparison, step = runs.comparison, runs.comparison.shown
    sections = {row.name: row for row in comparison.sections}
    most, of_section = comparison.changed_most, ""
    if most is not None:
        more = "more" if most.seconds > 0 else "less"
        of_section = f"; {table_label(most.name, sections)}: {ms_text(abs(most.seconds))} {more} a step, shown"
    interval = f"{step.level:.0%} interval {step.low:+.1%} to {step.high:+.1%}"
    two_programs = [runs.other_program] if runs.other_program else []
    if comparison.verdict == NOT_SHOWN:
        # An interval beyond 0 may still be no evidence, as of a few steps: the reasons say why.
        said = NOT_SHOWN if step.low <= 0 <= step.high else "not decided"
        headline = f"{said.upper()} between the steps ({step.relative:+.1%}, {interval}){of_section}"
        return headline, [f"{sentence('; '.join(comparison.reasons))}.", *two_programs]
    which = "the mean step, with its rare long ones," if comparison.is_by_mean else "a step"
    change = f"{abs(step.relative):.1%} {'longer' if step.relative > 0 else 'less'}"
    work = " for the same samples" if comparison.is_by_work else ""
    headline = f"{comparison.verdict.upper()}: {which} takes {change}{work} ({interval}){of_section}"
    unit, number = unit_of_steps(step.before_s)
    gain = f"{number(step.before_s)} -> {number(step.before_s * (1 + step.relative))} {unit}"
    if runs.saving_s is not None and runs.saving_share is not None:
        saved = of_training(abs(runs.saving_share), abs(runs.saving_s), "the run before")
        gain += f": {saved} {'more' if step.relative > 0 else 'saved'}"
    carried = [gain]
    for name in comparison.carriers:
        row, place, at = sections[name], runs.lines.get(name), ""
        if place is not None:
            at = f", most of it in {place.file}:{place.line} {place.function} ({signed_ms(place.seconds)})"
        carried.append(f"Carried by {table_label(name, sections)}: {signed_ms(row.seconds)} a step{at}")
    if not comparison.carriers and sections:
        carried.append("No section alone is shown to carry it.")
    return headline, [*carried, *two_programs]


def signed_ms(seconds: float) -> str:
    """Return a difference, such as +1.2 ms."""
    return f"{'+' if seconds >= 0 else '-'}{ms_text(abs(seconds))}"


def _table(comparison: Comparison, layout: Layout) -> list[str]:
    names = [row.name for row in comparison.sections]
    rows = [
        [label, ms_text(each.before_s), ms_text(each.after_s), f"{each.relative:+.1%}",
         f"{each.low:+.1%} to {each.high:+.1%}", "*" if each.is_shown else ""]
        for label, each in (("typical step", comparison.typical), ("mean step", comparison.mean))
    ]  # fmt: skip
    rows += [
        ["  " + shortened(table_label(row.name, names), NAME_WIDTH - 2), ms_text(row.before_s), ms_text(row.after_s),
         signed_ms(row.seconds), f"{row.low_s * MS_PER_S:+.3g} to {row.high_s * MS_PER_S:+.3g} ms",
         "*" if row.is_shown else ""]
        for row in shown_sections(comparison)
    ]  # fmt: skip
    if layout.is_lines:
        return [", ".join(cell for cell in row if cell) for row in rows]
    kept = fitting(HEADERS, rows, layout.width, (1, 2, 4))
    return table([HEADERS[at] for at in kept], [[row[at] for at in kept] for row in rows])


def shown_sections(comparison: Comparison) -> list[SectionDifference]:
    """Return the sections that get a row: those with a difference, and those that are not very short."""
    least_s = LEAST_ROW * comparison.typical.before_s
    return [row for row in comparison.sections if row.is_shown or max(row.before_s, row.after_s) >= least_s][:MOST_ROWS]


def notes_on(runs: ComparedRuns) -> list[str]:
    """Return sentences on what was compared, and how."""
    comparison = runs.comparison
    notes = [_steps(name, run) for name, run in _sides(comparison)]
    if comparison.work_ratio is None:
        notes.append("the samples of a step are unknown in at least one run: step times are compared as they are")
    elif comparison.is_by_work:
        samples = f"{comparison.before.samples_a_step:.1f} -> {comparison.after.samples_a_step:.1f} samples a step"
        notes.append(f"{samples}: the changes are those for the same number of samples")
    if comparison.is_paired:
        notes.append("steps are compared pair by pair: their times go together in the two runs")
    if not comparison.sections:
        notes.append("the journals have too few series of sections to compare these")
    return [*notes, *runs.notes]


def _steps(name: str, run: SettledSteps) -> str:
    busy = f"while others took {BUSY_FROM:.0%} of the time or more"
    reasons = ((run.warmup, "of warm-up"), (run.slowed, "slowed by a capture"), (run.busy, busy))
    left_out = ", ".join(f"{count} {why}" for count, why in reasons if count)
    words = f"{name}: {run.count} steps compared" + (f", left out {left_out}" if left_out else "")
    if run.lost is None:
        return f"{words}; what other programs took is unknown"
    return f"{words}; other programs took {run.lost:.0%} of the time" if run.lost >= 0.005 else words


def _differing(differing: Sequence[Differing], layout: Layout) -> list[str]:
    if not differing:
        return layout.wrap("What differs between the runs: nothing that is known.")
    lines = ["What differs between the runs:"]
    for each in differing[:MOST_DIFFERING]:
        before, after = (value if value is not None else "unknown" for value in (each.before, each.after))
        lines += layout.wrap(f"{each.what}: {before} -> {after}", "- ", "    ")
    more = len(differing) - MOST_DIFFERING
    return lines + ([f"- and {more} more (--json has all)"] if more > 0 else [])


def comparison_data(runs: ComparedRuns) -> dict[str, Any]:
    """Return the comparison as plain data; seconds are floats, relative differences 0.03 for 3%."""
    comparison = runs.comparison
    data: dict[str, Any] = printable_data(
        {
            "schema": SCHEMA,
            "before": runs.before,
            "after": runs.after,
            "programs": dict(zip(("before", "after"), runs.programs, strict=True)),
            "verdict": comparison.verdict,
            "headline": verdict_words(runs)[0],
            "reasons": comparison.reasons,
            "saving_s": runs.saving_s,
            "saving_share": runs.saving_share,
            "uses_mean": comparison.is_by_mean,
            "is_per_sample": comparison.is_by_work,
            "is_paired": comparison.is_paired,
            "samples_ratio": comparison.work_ratio,
            "typical": {**asdict(comparison.typical), "is_shown": comparison.typical.is_shown},
            "mean": {**asdict(comparison.mean), "is_shown": comparison.mean.is_shown},
            "changed_most": None if comparison.changed_most is None else comparison.changed_most.name,
            "sections": [
                {**asdict(row), "difference_s": row.seconds, "is_shown": row.is_shown} for row in comparison.sections
            ],
            "carried_by": [
                {"section": name, "line": asdict(runs.lines[name]) if name in runs.lines else None}
                for name in comparison.carriers
            ],
            "steps": {
                name: {
                    "compared": run.count,
                    "warmup": run.warmup,
                    "slowed_by_capture": run.slowed,
                    "on_busy_machine": run.busy,
                    "cpu_share_of_others": run.lost,
                    "samples_a_step": run.samples_a_step,
                }
                for name, run in _sides(comparison)
            },
            "differences": [each._asdict() for each in runs.differing],
            "notes": runs.notes,
        }
    )
    return data


def _sides(comparison: Comparison) -> list[tuple[str, SettledSteps]]:
    return [("before", comparison.before), ("after", comparison.after)]
