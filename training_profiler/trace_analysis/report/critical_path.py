"""The view of the critical path: what carries the steps, and what a step would take after changes."""

from typing import Final

from training_profiler.base.table import table, wrapped
from training_profiler.base.units import counted
from training_profiler.trace_analysis.critical_path.graph import Graph
from training_profiler.trace_analysis.critical_path.path import Link, Path, critical_path
from training_profiler.trace_analysis.critical_path.what_if import WhatIf, outcomes
from training_profiler.trace_analysis.load.columns import NONE
from training_profiler.trace_analysis.report.formats import kernel, ms, percent

MOST_LINKS: Final = 15
MOST_JUMPS: Final = 5
NO_NAME: Final = "(no operator or annotation)"
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
    parts = [_title(path, len(graph.sides)), _kinds(path), _links(path), *_what_if(path, outcomes(graph, path))]
    return "\n\n".join(parts)


def render_path_over_ranks(graph: Graph | str) -> str:
    """Return the path over all ranks as text with its heading, or why there is none."""
    heading = "=== Critical path over ranks ===\n"
    if isinstance(graph, str):
        return heading + wrapped(f"The critical path over ranks is unknown: {graph}.") + "\n"
    path = critical_path(graph)
    if not path.wall_ns:
        return f"{heading}Nothing in these traces takes time.\n"
    tables = [_ranks(path), *([_jumps(path)] if path.jumps else []), _kinds(path), _links(path)]
    parts = [_title(path, len(graph.sides)), *tables, *_what_if(path, outcomes(graph, path))]
    return heading + "\n\n".join(parts) + "\n"


def _title(path: Path, ranks: int) -> str:
    over = f" over {ranks} ranks" if ranks > 1 else ""
    after = f", from when the device began with it, after {ms(path.earlier_ns)}" if path.earlier_ns else ""
    after += f", without {ms(path.recording_ns)} of the recording itself" if path.recording_ns else ""
    if not path.steps:
        what = f"the recording{over} and the work that it launched"
    else:
        what = f"{counted(path.steps, 'step')}{over} and the work that {'they' if path.steps > 1 else 'it'} launched"
    each = f", {ms(path.step_ns)} a step" if path.steps > 1 and path.step_ns is not None else ""
    return wrapped(f"What determines the length of {what}{after}: {ms(path.wall_ns)}{each}")


def _ranks(path: Path) -> str:
    rows = [(f"rank {rank}", ms(ns), percent(ns / path.wall_ns)) for rank, ns in path.ranks_ns.items()]
    return table(("on the path", "time", "share"), rows)


def _jumps(path: Path) -> str:
    rows = [
        (kernel(jump.name), f"rank {jump.waiting}", f"rank {jump.waited_for}", jump.count)
        for jump in path.jumps[:MOST_JUMPS]
    ]
    more = len(path.jumps) - len(rows)
    text = table(("the path leaves a collective", "of", "for", "times"), rows, left=(0, 1, 2))
    return text + (f"\n({more} more; --json has all)" if more > 0 else "")


def _kinds(path: Path) -> str:
    rows = [(kind, ms(ns), percent(ns / path.wall_ns)) for kind, ns in path.kinds_ns.items()]
    return table(("on the path", "time", "share"), [*rows, ("all", ms(path.wall_ns), percent(1.0))])


def _links(path: Path) -> str:
    shown = [
        (kernel(link.name) or NO_NAME, *_rank(link), link.kind, ms(link.ns), percent(link.ns / path.wall_ns))
        for link in path.links[:MOST_LINKS]
    ]
    more = len(path.links) - len(shown)
    is_of_ranks = bool(path.links) and path.links[0].rank != NONE
    headers = ("longest", *(("rank",) if is_of_ranks else ()), "kind", "time", "share")
    text = table(headers, shown, left=(0, headers.index("kind")))
    return text + (f"\n({more} more; --json has all)" if more > 0 else "")


def _rank(link: Link) -> tuple[int, ...]:
    return () if link.rank == NONE else (link.rank,)


def _what_if(path: Path, found: list[WhatIf]) -> list[str]:
    each = 1 if path.step_ns is None else path.steps
    rows = []
    for change, wall_ns in ((outcome.change, outcome.wall_ns) for outcome in found):
        what = f"{change.what}: {kernel(change.name)}" if change.name else change.what
        rows.append((what, ms(wall_ns / each), _change(wall_ns / path.wall_ns - 1)))
    of = "it takes" if path.step_ns is None else "a step takes"
    return [table(("if", of, "change"), rows), wrapped(ASSUMED)]


def _change(share: float) -> str:
    """Return a change as a percentage, with a sign unless it rounds to nothing."""
    return percent(round(share, 3) + 0.0)
