"""The view of the critical path: what carries the steps, and what a step would take after changes."""

from collections.abc import Mapping
from typing import Final

from training_profiler.base.table import table, wrapped
from training_profiler.base.units import counted
from training_profiler.trace_analysis.critical_path import Link, Path, critical_path, outcomes
from training_profiler.trace_analysis.path_graph import Graph
from training_profiler.trace_analysis.report.figures import kernel, listing, ms, percent

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
    return _path(graph) or "Nothing in this trace takes time."


def render_path_over_ranks(graph: Graph | str) -> str:
    """Return the path over all ranks as text with its heading, or why there is none."""
    if isinstance(graph, str):
        body = wrapped(f"The critical path over ranks is unknown: {graph}.")
    else:
        body = _path(graph) or "Nothing in these traces takes time."
    return f"=== Critical path over ranks ===\n{body}\n"


def _path(graph: Graph) -> str:
    """Return the path and what changes would bring; "" if nothing takes time."""
    path = critical_path(graph)
    if not path.wall_ns:
        return ""
    of_ranks = [_sums(path, {f"rank {rank}": ns for rank, ns in path.ranks_ns.items()})] if graph.is_of_ranks else []
    of_ranks += [_jumps(path)] if graph.is_of_ranks and path.jumps else []
    kinds = _sums(path, path.kinds_ns | {"all": path.wall_ns})
    return "\n\n".join(
        [_title(path, len(graph.sides)), *of_ranks, kinds, _links(path, graph.is_of_ranks), *_what_if(graph, path)]
    )


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


def _sums(path: Path, times_ns: Mapping[str, int]) -> str:
    rows = [(what, ms(ns), percent(ns / path.wall_ns)) for what, ns in times_ns.items()]
    return table(("on the path", "time", "share"), rows)


def _jumps(path: Path) -> str:
    return listing(
        ("the path leaves a collective", "of", "for", "times"),
        path.jumps,
        lambda jump: (kernel(jump.name), f"rank {jump.waiting}", f"rank {jump.waited_for}", jump.count),
        MOST_JUMPS,
        left=(0, 1, 2),
    )


def _links(path: Path, is_of_ranks: bool) -> str:
    headers = ("longest", *(("rank",) if is_of_ranks else ()), "kind", "time", "share")

    def row_of(link: Link) -> tuple[object, ...]:
        rank = (link.rank,) if is_of_ranks else ()
        return kernel(link.name) or NO_NAME, *rank, link.kind, ms(link.ns), percent(link.ns / path.wall_ns)

    return listing(headers, path.links, row_of, MOST_LINKS, left=(0, headers.index("kind")))


def _what_if(graph: Graph, path: Path) -> list[str]:
    each, of = (1, "it takes") if path.step_ns is None else (path.steps, "a step takes")
    rows = []
    for found in outcomes(graph, path):
        name = f": {kernel(found.change.name)}" if found.change.name else ""
        change = percent(round(found.wall_ns / path.wall_ns - 1, 3) + 0.0)  # without a sign if it rounds to nothing
        rows.append((f"{found.change.what}{name}", ms(found.wall_ns / each), change))
    return [table(("if", of, "change"), rows), wrapped(ASSUMED)]
