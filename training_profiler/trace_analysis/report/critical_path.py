"""The view of the critical path: what carries the steps, and what a step would take after changes."""

from typing import Final

from training_profiler.findings.tables import table, wrapped
from training_profiler.trace_analysis.critical_path.graph import Graph
from training_profiler.trace_analysis.critical_path.path import Path, critical_path
from training_profiler.trace_analysis.critical_path.what_if import Outcome, outcomes
from training_profiler.trace_analysis.report.formats import kernel, ms, percent
from training_profiler.units import counted

MOST_LINKS: Final = 15
ASSUMED: Final = (
    "An estimate from what waits for what, with all other times as recorded. A change brings less if it slows down "
    "something else."
)


def render_critical_path(graph: Graph | str | None) -> str:
    """Return the view as text, or why the trace has none."""
    if graph is None or isinstance(graph, str):
        return wrapped(f"The critical path of this trace is unknown: {graph or 'it was not computed'}.")
    path = critical_path(graph)
    if not path.wall_ns:
        return "Nothing in this trace takes time."
    return "\n".join([_title(path), "", _kinds(path), "", _links(path), "", *_what_if(path, outcomes(graph, path))])


def _title(path: Path) -> str:
    if not path.steps:
        return wrapped(f"What determines the length of the recording and the work that it launched: {ms(path.wall_ns)}")
    each = f", {ms(path.wall_ns / path.steps)} a step" if path.steps > 1 else ""
    steps, they = counted(path.steps, "step"), "they" if path.steps > 1 else "it"
    return wrapped(f"What determines the length of {steps} and the work that {they} launched: {ms(path.wall_ns)}{each}")


def _kinds(path: Path) -> str:
    rows = [(kind, ms(ns), percent(ns / path.wall_ns)) for kind, ns in path.kinds_ns.items()]
    return table(("on the path", "time", "share"), [*rows, ("all", ms(path.wall_ns), percent(1.0))])


def _links(path: Path) -> str:
    named = [link for link in path.links if link.name]
    shown = [
        (kernel(link.name), link.kind, ms(link.ns), percent(link.ns / path.wall_ns)) for link in named[:MOST_LINKS]
    ]
    more = len(named) - len(shown)
    text = table(("longest", "kind", "time", "share"), shown, left=(0, 1))
    return text + (f"\n({more} more; --json has all)" if more > 0 else "")


def _what_if(path: Path, found: list[Outcome]) -> list[str]:
    each = max(1, path.steps)
    rows = []
    for change, wall_ns in ((outcome.change, outcome.wall_ns) for outcome in found):
        what = f"{change.what}: {kernel(change.name)}" if change.name else change.what
        rows.append((what, ms(wall_ns / each), percent((wall_ns - path.wall_ns) / path.wall_ns)))
    of = "a step takes" if path.steps else "it takes"
    return [table(("if", of, "change"), rows), "", wrapped(ASSUMED)]
