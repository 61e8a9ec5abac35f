"""The page of a comparison: for each pair the verdict, the steps of both runs, the sections, and what differs."""

from collections.abc import Sequence
from typing import Any, Final

from training_profiler.base.html import Cell, Html, element, joined, part, table
from training_profiler.base.units import MS_PER_S, ms_number
from training_profiler.reports.comparison import (
    TOGETHER,
    VERDICT_COLORS,
    ComparedRuns,
    notes_on,
    shown_sections,
    signed_ms,
    verdict_words,
)
from training_profiler.reports.page_document import document, part_file
from training_profiler.reports.sections import table_label
from training_profiler.statistics.compare import Comparison
from training_profiler.statistics.run_series import SettledSteps

MOST_POINTS: Final = 1_000  # of a run; of longer ones means of consecutive steps
DIGITS: Final = 4
HEADERS: Final = ("per step", "before ms", "after ms", "change", "of a step", "interval",
                  "change and interval", "beyond chance")  # fmt: skip


def render_comparisons(pairs: Sequence[ComparedRuns]) -> str:
    """Return one page of comparisons that loads nothing."""
    ids = [f"pair{number}" for number in range(1, len(pairs) + 1)]
    parts = [_pair(runs, id, len(pairs) > 1) for runs, id in zip(pairs, ids, strict=True)]
    data = {"compared": [_steps(runs.comparison, id) for runs, id in zip(pairs, ids, strict=True)]}
    subtitle = f"before: {pairs[0].before} · after: {', '.join(runs.after for runs in pairs)}"
    return document("Comparison", subtitle, joined(parts), data)


def _pair(runs: ComparedRuns, id: str, is_one_of_many: bool) -> Html:
    of = f"{runs.after}: " if is_one_of_many else ""
    chart = Html(part_file("comparison.html").replace("PAIR", id))
    facts = [[each.what, each.before or "unknown", each.after or "unknown"] for each in runs.differing]
    differs = element("div", table("What differs", ("what", "before", "after"), facts), class_="texts")
    notes = [f"Where it says yes, the change is beyond chance; {TOGETHER}", *notes_on(runs)]
    return joined(
        [
            part(f"{id}-verdict", f"{of}Verdict", _verdict(runs)),
            part(f"{id}-steps", f"{of}Steps", chart),
            part(f"{id}-sections", f"{of}Sections", _sections(runs.comparison)),
            part(f"{id}-differs", f"{of}What differs", differs if facts else element("p", "Nothing that is known.")),
            part(f"{id}-notes", f"{of}What was compared", element("ul", *(element("li", note) for note in notes))),
        ]
    )


def _verdict(runs: ComparedRuns) -> Html:
    headline, details = verdict_words(runs)
    lines = [element("p", headline, class_="headline"), *(element("p", line) for line in details)]
    return element("div", *lines, class_=f"verdict {VERDICT_COLORS[runs.comparison.verdict]}", role="status")


def _sections(comparison: Comparison) -> Html:
    """Return the table. A row has times of one step, the change for the same samples and its interval, in s."""
    rows: list[tuple[str, Any, float, float, float]] = [
        (label, each, each.relative * each.before_s, each.low * each.before_s, each.high * each.before_s)
        for label, each in (("typical step", comparison.typical), ("mean step", comparison.mean))
    ]
    names = [row.name for row in comparison.sections]
    rows += [
        (table_label(row.name, names), row, row.seconds, row.low_s, row.high_s) for row in shown_sections(comparison)
    ]
    step_s = comparison.typical.before_s
    least_s, most_s = min(0.0, *(low_s for *_, low_s, _ in rows)), max(0.0, *(high_s for *_, high_s in rows))
    cells: list[list[object]] = [
        [
            label,
            Cell(ms_number(times.before_s), times.before_s),
            Cell(ms_number(times.after_s), times.after_s),
            Cell(signed_ms(change_s), change_s),
            Cell(f"{change_s / step_s:+.1%}", change_s / step_s),
            f"{low_s * MS_PER_S:+.3g} to {high_s * MS_PER_S:+.3g} ms",
            _interval(change_s, low_s, high_s, least_s, most_s),
            "yes" if times.is_shown else "",
        ]
        for label, times, change_s, low_s, high_s in rows
    ]
    return table("Times of a step and of its sections", HEADERS, cells)


def _interval(change_s: float, low_s: float, high_s: float, least_s: float, most_s: float) -> Html:
    """Return the interval as a line on a scale that all rows share, with marks at 0 and at the change."""

    def at(seconds: float) -> float:
        return 100 * (seconds - least_s) / (most_s - least_s or 1.0)

    zero = element("s", style=f"left:{at(0.0):.2f}%")
    line = element("i", style=f"left:{at(low_s):.2f}%;width:{at(high_s) - at(low_s):.2f}%")
    change = element("b", style=f"left:{at(change_s):.2f}%")
    return element("div", zero, line, change, class_="interval", aria_hidden="true")


def _steps(comparison: Comparison, id: str) -> dict[str, Any]:
    before, after = comparison.before, comparison.after
    last = int(max(before.numbers[-1], after.numbers[-1]))
    group = last // MOST_POINTS + 1
    means = {"before": _means_ms(before, group, last), "after": _means_ms(after, group, last)}
    return {"id": id, "group": group, **means}


def _means_ms(run: SettledSteps, group: int, last: int) -> list[float | None]:
    """Return the mean of each group of steps; None where none is compared."""
    groups: list[list[float]] = [[] for _ in range(last // group + 1)]
    for number, step_s in zip(run.numbers.tolist(), run.step_s.tolist(), strict=True):
        groups[number // group].append(step_s)
    return [float(f"{MS_PER_S * sum(each) / len(each):.{DIGITS}g}") if each else None for each in groups]
