"""Analyse traces of torch.profiler: how the device spends its time, why it is idle, what to change."""

import argparse
import gc
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from training_profiler.base.errors import ProfilerError, TraceError
from training_profiler.base.text import printable_data, printable_lines
from training_profiler.cli.common import runs_folder, write
from training_profiler.diagnosis.registry import read_thresholds
from training_profiler.safety.files import is_readable, write_output
from training_profiler.storage.run_folder import run_named
from training_profiler.torch_capture.request import FOLDER as CAPTURES
from training_profiler.trace_analysis.communication import RankCollective, over_ranks
from training_profiler.trace_analysis.compare import compare
from training_profiler.trace_analysis.memory_snapshot import SnapshotOfDevice, devices_of, read_snapshot
from training_profiler.trace_analysis.operators import SORT_KEYS
from training_profiler.trace_analysis.path_graph import Graph
from training_profiler.trace_analysis.path_over_ranks import joined_graph
from training_profiler.trace_analysis.reader import keep_memory
from training_profiler.trace_analysis.report_figures import data_of, path_data, trace_data
from training_profiler.trace_analysis.report_files import (
    OVER_RANKS,
    TABLES,
    annotated,
    over_ranks_rows,
    path_tables,
    render_traces,
)
from training_profiler.trace_analysis.report_several import are_ranks, comparison_data, render_comparison, render_ranks
from training_profiler.trace_analysis.report_views import (
    CRITICAL_PATH,
    VIEWS,
    render_path,
    render_snapshot,
    render_view,
)
from training_profiler.trace_analysis.rules_findings import THRESHOLDS
from training_profiler.trace_analysis.trace import Trace, analyse, analyse_ranks

PATTERNS: Final = ("*.json", "*.json.gz")
JOURNALS: Final = "rank*.jsonl"
TRACES: Final = (".pt.trace.json", ".pt.trace.json.gz")  # if a folder has such files, its other JSON is not a trace
EXAMPLE: Final = "example: --threshold launch-bound=0.2"
BY_DEFAULT: Final = ("overview", "trace", "recommendations")
BY_DEFAULT_ON_HOST: Final = ("overview", "operators", "recommendations")  # without a device there are no gaps


def prepare_parser(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument(
        "trace",
        type=Path,
        nargs="?",
        metavar="FILE_OR_FOLDER",
        help="a trace, a folder with one trace per rank, or a run folder with captures",
    )
    parser.add_argument("--json", action="store_true", help="print all numbers as JSON, one line per file")
    parser.add_argument(
        "--compare", type=Path, metavar="OTHER", help="compare with this trace (or folder), recorded after a change"
    )
    parser.add_argument(
        "--sort",
        choices=SORT_KEYS,
        metavar="KEY",
        help=f"order of the operators: {', '.join(SORT_KEYS)} (default: {SORT_KEYS[0]})",
    )
    parser.add_argument(
        "--view",
        choices=VIEWS,
        metavar="VIEW",
        action="append",
        help=f"show only this view; may be given several times: {', '.join(VIEWS)}",
    )
    parser.add_argument(
        "--memory-snapshot",
        type=Path,
        metavar="PICKLE",
        help="show what fills the memory, from a file of torch.cuda.memory._dump_snapshot; alone or with a trace",
    )
    parser.add_argument("--html", type=Path, metavar="FILE", help="write one HTML page that loads nothing")
    parser.add_argument("--csv", type=Path, metavar="FOLDER", help="write the tables as CSV files into this folder")
    parser.add_argument(
        "--annotate",
        type=Path,
        metavar="FILE",
        help="write a copy of the trace for Perfetto, with the causes of gaps, critical path, queue length and copies",
    )
    parser.add_argument(
        "--threshold",
        action="append",
        default=[],
        metavar="RULE=NUMBER",
        help="override the threshold of a rule, such as launch-bound=0.2; may be given several times",
    )


def run(arguments: argparse.Namespace) -> int:
    """Print the analysis and return 0.

    Raises:
        ProfilerError: The arguments do not go together.
        TraceError: A file cannot be read as a trace, or two cannot be compared.
    """
    _check(arguments)
    with _without_collector():
        text = _written(arguments) if _is_written(arguments) else _text(arguments)
    write(printable_lines(text))
    return 0


def _is_written(arguments: argparse.Namespace) -> bool:
    return any(given is not None for given in (arguments.html, arguments.csv, arguments.annotate))


def _written(arguments: argparse.Namespace) -> str:
    """Write the chosen files, and return a line for each."""
    paths = _files(arguments.trace)
    given = {path.resolve() for path in paths}
    contents: dict[Path, bytes] = {}
    if arguments.annotate is not None:
        if len(paths) > 1:
            raise TraceError(f"--annotate takes one trace, and {arguments.trace} has {len(paths)}: give one of them")
        contents[arguments.annotate] = annotated(paths[0])
    if arguments.html is not None or arguments.csv is not None:
        traces = _read(paths, with_graph=True)
        ranks, joined = _over_ranks(traces), _joined_graph(traces)
        if arguments.html is not None:
            thresholds = read_thresholds(",".join(arguments.threshold), THRESHOLDS, EXAMPLE)
            page = render_traces(traces, thresholds, ranks, joined)
            contents[arguments.html] = page.encode("utf-8", "replace")
        if arguments.csv is not None:
            tables = {"over_ranks": over_ranks_rows(ranks)} | dict(zip(OVER_RANKS, path_tables(joined), strict=True))
            for trace in traces:
                of = f"{trace.path.name.removesuffix('.gz').removesuffix('.json')}." if len(traces) > 1 else ""
                tables |= {f"{of}{name}": table_of(trace) for name, table_of in TABLES.items()}
            contents |= {
                arguments.csv / f"{name}.csv": table.csv().encode("utf-8", "replace")
                for name, table in tables.items()
                if table.rows
            }
    for path, content in contents.items():
        if path.resolve() in given:
            raise TraceError(f"{path} is the trace that is read; write to another file")
        path.parent.mkdir(parents=True, exist_ok=True)
        write_output(path, content)
    return "".join(f"{path}\n" for path in contents)


def _text(arguments: argparse.Namespace) -> str:
    if arguments.compare is not None:
        return _compared(arguments)
    memory = [] if arguments.memory_snapshot is None else devices_of(read_snapshot(arguments.memory_snapshot))
    if arguments.trace is not None:
        return _texts(arguments, memory, read_thresholds(",".join(arguments.threshold), THRESHOLDS, EXAMPLE))
    if arguments.json:
        return _line({"file": arguments.memory_snapshot.name, "memory_snapshot": [asdict(device) for device in memory]})
    return f"=== Memory ===\n{render_snapshot(arguments.memory_snapshot.name, memory)}\n"


def summary_of(path: Path) -> str:
    """Return what the command shows of one trace by default.

    Raises:
        TraceError: it cannot be read as a trace.
    """
    with _without_collector():
        trace = analyse(path)
        return printable_lines("\n".join(_views(trace, (), SORT_KEYS[0], [], THRESHOLDS)))


def _views(
    trace: Trace,
    asked: Sequence[str],
    sort: str,
    ranks: Sequence[RankCollective],
    thresholds: Mapping[str, float],
) -> list[str]:
    *by_default, last = BY_DEFAULT if trace.devices else BY_DEFAULT_ON_HOST
    by_default += ["counters", last] if trace.counters else [last]
    return [render_view(view, trace, sort, ranks, thresholds) for view in asked or by_default]


def prepare_process() -> None:
    """Prepare a process that ends after this command."""
    keep_memory()


@contextmanager
def _without_collector() -> Iterator[None]:
    was_enabled = gc.isenabled()
    gc.disable()  # it would scan millions of objects that are all in use
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _check(arguments: argparse.Namespace) -> None:
    views = arguments.view or ()
    if arguments.trace is None and arguments.memory_snapshot is None:
        raise ProfilerError("nothing to read; example: training-profiler trace runs/20261121-142530/captures")
    if arguments.trace is None and (views or arguments.sort or arguments.compare is not None or arguments.threshold):
        raise ProfilerError("--memory-snapshot alone has one view: give a trace too, or leave the other options out")
    if arguments.compare is not None and (arguments.memory_snapshot is not None or arguments.threshold):
        raise ProfilerError("--compare prints tables of its own: leave --memory-snapshot and --threshold out")
    if arguments.json and views:
        raise ProfilerError("--json has all views: leave --view out and pick the keys that you need")
    if arguments.compare is not None and (views or arguments.sort):
        raise ProfilerError("--compare prints tables of its own: leave --view and --sort out")
    if _is_written(arguments):
        if arguments.trace is None:
            raise ProfilerError("--html, --csv and --annotate need a trace")
        others = (views, arguments.sort, arguments.json, arguments.compare, arguments.memory_snapshot)
        if any(others):
            raise ProfilerError("--html, --csv and --annotate write files: leave the options that print out")
    if arguments.sort and not arguments.json and "operators" not in views:
        raise ProfilerError(
            f"--sort orders the operators: add --view operators, as in --view operators --sort {arguments.sort}"
        )


def _texts(arguments: argparse.Namespace, memory: Sequence[SnapshotOfDevice], thresholds: Mapping[str, float]) -> str:
    with_graph = arguments.json or CRITICAL_PATH in (arguments.view or ())
    traces = _read(_files(arguments.trace), with_graph=with_graph)
    ranks = _over_ranks(traces)
    sort = arguments.sort or SORT_KEYS[0]
    if arguments.json:
        extra: dict[str, Any] = {
            "communication_over_ranks": [
                data_of(row, "kind count transfer_us waiting_us waited_for_rank=latest_rank") for row in ranks
            ],
            "late_ranks_share_of_waiting": {collective.kind: dict(collective.late) for collective in ranks},
            "critical_path_over_ranks": path_data(_joined_graph(traces)),
        }
        if arguments.memory_snapshot is not None:
            extra["memory_snapshot"] = [asdict(device) for device in memory]
        return "".join(_line(trace_data(trace, sort, thresholds) | extra) for trace in traces)
    parts = []
    if len(traces) > 1 and not arguments.view:
        parts.append(render_ranks(traces, ranks, thresholds))
        traces = []
    joined = _joined_graph(traces) if CRITICAL_PATH in (arguments.view or ()) else None
    if joined is not None:
        parts.append(f"=== Critical path over ranks ===\n{render_path(joined, 'over ranks', 'these traces')}\n")
    for trace in traces:
        if len(traces) > 1:
            parts.append(f"##### {trace.path.name}\n")
        parts += _views(trace, arguments.view or (), sort, ranks, thresholds)
    if arguments.memory_snapshot is not None:
        parts.append(f"=== Memory snapshot ===\n{render_snapshot(arguments.memory_snapshot.name, memory)}\n")
    return "\n".join(parts)


def _compared(arguments: argparse.Namespace) -> str:
    comparisons = [compare(before, after) for before, after in _pairing(arguments.trace, arguments.compare)]
    if arguments.json:
        return "".join(_line(comparison_data(comparison)) for comparison in comparisons)
    return "\n".join(render_comparison(comparison) for comparison in comparisons)


def _pairing(before: Path, after: Path) -> list[tuple[Trace, Trace]]:
    """Return the pairs to compare: two files, or the same rank of two folders."""
    sides = [[trace for path in _files(side) for trace in analyse_ranks(path)] for side in (before, after)]
    if len(sides[0]) == len(sides[1]) == 1:
        return [(sides[0][0], sides[1][0])]
    by_rank = [{trace.rank: trace for trace in side} for side in sides]
    if any(len(ranks) != len(side) or None in ranks for ranks, side in zip(by_rank, sides, strict=True)):
        raise TraceError(f"the traces in {before} and {after} are not of one rank each; compare them file by file")
    if by_rank[0].keys() != by_rank[1].keys():
        raise TraceError(f"{before} and {after} are of different ranks; compare them file by file")
    return [(by_rank[0][rank], by_rank[1][rank]) for rank in sorted(by_rank[0], key=str)]


def _files(given: Path) -> list[Path]:
    if not given.exists():
        named = run_named(str(given), runs_folder())
        if named is not None:
            return _files(named)
        raise TraceError(f"{given} does not exist; example: training-profiler trace runs/20261121-142530/captures")
    if not given.is_dir():
        return [given]
    files = sorted({path for pattern in PATTERNS for path in given.glob(pattern) if is_readable(path)})
    traces = [path for path in files if path.name.endswith(TRACES)]
    if not traces and (given / CAPTURES).is_dir():  # a run folder, whose other JSON is not a trace
        return _files(given / CAPTURES)
    if not traces and any(given.glob(JOURNALS)):
        raise TraceError(
            f"{given} is the folder of a run that captured no steps; RECTIFIED_FLOW_PROFILE_CAPTURE=steps=100-103 "
            f"captures some in the next run, training-profiler capture {given} in this one while it runs"
        )
    files = traces or files
    if not files:
        raise TraceError(f"{given} holds no trace (*.pt.trace.json or *.pt.trace.json.gz)")
    return files


def _read(paths: Sequence[Path], *, with_graph: bool) -> list[Trace]:
    """Return the traces; if there are several, without their events, which would take much memory."""
    found: list[Trace] = []
    for path in paths:
        traces = analyse_ranks(path)
        is_alone = len(paths) == len(traces) == 1
        found += traces if is_alone else [trace.without_events(with_graph=with_graph) for trace in traces]
    return found


def _over_ranks(traces: Sequence[Trace]) -> list[RankCollective]:
    runs = {trace.rank: trace.collective_runs for trace in traces if trace.rank is not None}
    return over_ranks(runs) if are_ranks(traces) else []


def _joined_graph(traces: Sequence[Trace]) -> Graph | str | None:
    """Return the graph over ranks, or why there is none; None if the traces are not of several ranks of one job."""
    if len(traces) < 2 or not are_ranks(traces):
        return None
    by_rank = {trace.rank: trace for trace in traces if trace.rank is not None}
    return joined_graph(
        {rank: trace.graph for rank, trace in by_rank.items()},
        {rank: trace.collective_runs for rank, trace in by_rank.items()},
    )


def _line(data: dict[str, Any]) -> str:
    return json.dumps(printable_data(data), allow_nan=False) + "\n"
