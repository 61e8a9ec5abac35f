"""The view of the code: where the host spends its time, what it launches there, and where gaps come from."""

from typing import Final

from training_profiler.base.table import table, with_details, wrapped
from training_profiler.base.units import counted
from training_profiler.trace_analysis.code_places import SampledLines, TracedPlaces
from training_profiler.trace_analysis.report.formats import ms_number, percent
from training_profiler.trace_analysis.tables import place_rows
from training_profiler.trace_analysis.trace import Trace

MOST_ROWS: Final = 15
LINE: Final = "line"
WITHOUT: Final = (
    "This trace has no annotations, modules or stacks of Python: record with "
    "torch.profiler.profile(with_stack=True), or mark parts with torch.profiler.record_function()."
)
LEGEND: Final = (
    "A moment belongs to the innermost place, so self times add up; total includes inner places, and a place within "
    "itself counts once. Gaps are those of 30 us or more."
)


def code(analysis: Trace) -> str:
    """Return a table for each kind of place that the trace has."""
    found = analysis.code
    kinds = (("section", found.sections), ("nn.Module", found.modules), (LINE, found.lines))
    tables = [_table(kind, places, analysis) for kind, places in kinds if places.rows]
    if found.sampled.rows:
        tables.append(_sampled(found.sampled, analysis.has_gpu))
    return "\n\n".join([*tables, wrapped(LEGEND)]) if tables else wrapped(WITHOUT)


def _table(kind: str, places: TracedPlaces, analysis: Trace) -> str:
    is_line = kind == LINE
    found = place_rows(places, analysis, f"{kind}\n(times in ms)", _file_and_line if is_line else str)
    names = [place.name for place in places.rows[:MOST_ROWS]]
    lines = [with_details(found.text(most=MOST_ROWS), names if is_line else [])]
    if places.elsewhere_idle_ns:
        lines.append(f"(gaps outside of these: {ms_number(places.elsewhere_idle_ns)} ms)")
    more = len(places.rows) - len(names)
    if more:
        lines.append(f"({more} more; --json has all)")
    return "\n".join(lines)


def _sampled(sampled: SampledLines, has_gpu: bool) -> str:
    count = sum(row.samples for row in sampled.rows)
    shown = sampled.rows[:MOST_ROWS]
    rows = [
        (_file_and_line(row.name), row.samples, percent(row.samples / count), *((row.in_gaps,) if has_gpu else ()))
        for row in shown
    ]
    text = table((f"line\n({counted(count, 'sample')})", "samples", "share", *(("in gaps",) if has_gpu else ())), rows)
    more = len(sampled.rows) - len(shown)
    return with_details(text, [row.name for row in shown]) + (f"\n({more} more; --json has all)" if more else "")


def _file_and_line(line: str) -> str:
    return line.partition(" in ")[0].rpartition("/")[2]
