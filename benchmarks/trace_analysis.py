"""Time and memory of trace analysis, against a bare decoder, traceinsight (HolisticTraceAnalysis) and TraceLens.

Run it with ``python -m benchmarks.trace_analysis``; with ``--large`` (15 minutes, 4 GB of memory) it compares
``trace FILE`` and the floor for up to 3.5 million events, and with ``--beside FILE ...`` the same with the report of
TraceLens and the analyses of traceinsight, those that can be imported. TraceLens is on no package registry:
``pip install git+https://github.com/AMD-AGI/TraceLens``.

CPU seconds of reading and all analyses, and peak resident memory, each in its own process, taken in turns; the least
of all turns, since what else the machine does only adds to them. Of the largest real trace at hand, and of that one
repeated (its steps put one after another). Imports count on neither side.
The floor is unpacking the same file and msgspec's decode of it into typed events; ``trace FILE`` is compared with it.
traceinsight runs all its analyses that need one trace, without the critical path; the second column leaves out its
search for frequent sequences of kernels, which has no counterpart here.
"""

import argparse
import contextlib
import gzip
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from resource import RUSAGE_CHILDREN, getrusage
from tempfile import TemporaryDirectory
from time import process_time
from typing import Any, Final

from benchmarks.children import result_of
from benchmarks.figures import Figure, print_figures, print_table

TRACES: Final = Path(__file__).resolve().parents[2] / "shared" / "traces"
LARGEST: Final = "a100_ddp_rank3of8.pt.trace.json.gz"
TIMES: Final = (1, 2, 5)  # repetitions; two are 218,203 events
LARGE: Final = (2, 8, 32)  # 218,203, 872,683 and 3,490,603 events
ROUNDS: Final = 5
MOST_TURNS: Final = 4  # a round, of the smaller ones: together they take as long as the largest
_IDS: Final = ("correlation", "External id")
TARGET_TIMES_FASTER: Final = 7
TARGET_MB: Final = 400  # for 216,000 events
MOST_ABOVE_LINEAR: Final = 1.25
MOST_OVER_FLOOR: Final = 1.3  # and a microsecond for each event
MOST_MEMORY_OVER_FLOOR: Final = 1.1
OTHERS: Final = {"TraceLens": "TraceLens", "traceinsight": "hta"}  # tools and the modules that they are imported as
# Analyses of traceinsight by name, with their options.
ANALYSES: Final[dict[str, dict[str, Any]]] = {
    "get_temporal_breakdown": {"visualize": False},
    "get_gpu_kernel_breakdown": {"visualize": False},
    "get_idle_time_breakdown": {"ranks": [0], "visualize": False},
    "get_comm_comp_overlap": {"visualize": False},
    "get_cuda_kernel_launch_stats": {"ranks": [0], "visualize": False},
    "get_memory_bw_summary": {"ranks": [0]},
    "get_memory_bw_time_series": {"ranks": [0]},
    "get_queue_length_summary": {"ranks": [0]},
    "get_queue_length_time_series": {"ranks": [0]},
    "get_gpu_user_annotation_breakdown": {"visualize": False},
    "get_frequent_cuda_kernel_sequences": {"operator_name": "aten::"},
}


def run() -> list[Figure]:
    """Measure, print and return the figures; takes about six minutes."""
    source = _source()
    if source is None:
        return []
    sides = ["floor", "report", "ours", *(["traceinsight"] if find_spec("hta") else [])]
    if "traceinsight" not in sides:
        print("traceinsight is not installed (`make bench` does): ours alone\n")
    best = _least(source, TIMES, sides)
    print(f"{LARGEST} ({int(best['ours', 1]['events'])} events) and repeated; the least of {ROUNDS} rounds")
    print_table(
        ["", "times", "CPU s", "without sequences", "peak MB"],
        [
            [side, times, *(f"{result[key]:.2f}" for key in ("cpu_s", "comparable_cpu_s")), f"{result['peak_mb']:.0f}"]
            for (side, times), result in sorted(best.items(), key=lambda item: (item[0][1], item[0][0]))
        ],
    )
    stats = _figures(best)
    print_figures(stats)
    return stats


def run_large() -> list[Figure]:
    """Compare ``trace FILE`` with the floor for up to 3.5 million events."""
    source = _source()
    if source is None:
        return []
    best = _least(source, LARGE, ("floor", "report"))
    rows = [[side, times, f"{cost['cpu_s']:.2f}", f"{cost['peak_mb']:.0f}"] for (side, times), cost in best.items()]
    print_table(["", "times", "CPU s", "peak MB"], rows)
    figures = [figure for times in LARGE for figure in _over_floor(best, times)]
    print_figures(figures)
    return figures


def run_beside(paths: Sequence[Path]) -> None:
    """Compare ``trace FILE`` with the other tools on each of these traces, one after another in turns."""
    sides = ["report", *(side for side, module in OTHERS.items() if find_spec(module))]
    absent = ", ".join(sorted(OTHERS.keys() - set(sides))) or "none"
    print(f"Not installed: {absent}. The least of {ROUNDS}, CPU s and peak MB\n")
    rows = []
    for path in paths:
        costs: dict[str, list[dict[str, float]]] = {side: [] for side in sides}
        for _ in range(ROUNDS):
            for side, found in costs.items():
                with contextlib.suppress(RuntimeError):
                    found.append(result_of("benchmarks.trace_analysis", "--inside", side, str(path), is_on=False))
        rows += [
            [path.name, side, *(_shown(found, key) for key in ("cpu_s", "peak_mb"))] for side, found in costs.items()
        ]
    print_table(["trace", "", "CPU s", "peak MB"], rows)


def _shown(found: Sequence[Mapping[str, float]], key: str) -> str:
    return f"{min(result[key] for result in found):.2f}" if found else "ends with an error"


def _source() -> Path | None:
    """Return the largest real trace; None, and say so, if it is absent."""
    source = TRACES / LARGEST
    if source.is_file():
        return source
    print(f"Skipped: no real trace to read ({source} is absent)\n")
    return None


def _least(source: Path, all_times: Sequence[int], sides: Sequence[str]) -> dict[tuple[str, int], dict[str, float]]:
    found: dict[tuple[str, int], list[dict[str, float]]] = {}
    with TemporaryDirectory() as folder:
        files = {times: repeated(source, times, Path(folder)) for times in all_times}
        for _ in range(ROUNDS):
            turns = [times for times in files for _ in range(min(MOST_TURNS, max(files) // times))]
            for times in turns:
                for side in sides:
                    result = result_of("benchmarks.trace_analysis", "--inside", side, str(files[times]), is_on=False)
                    found.setdefault((side, times), []).append(result)
    return {key: {name: min(result[name] for result in all_) for name in all_[0]} for key, all_ in found.items()}


def _figures(best: dict[tuple[str, int], dict[str, float]]) -> list[Figure]:
    def ratio(times: int, key: str) -> float | None:
        theirs = best.get(("traceinsight", times))
        return best["ours", times][key] / theirs[key] if theirs else None

    most = max(TIMES)
    stats = []
    for times in (1, most):
        size = f"trace x{times}"
        stats += [
            Figure(f"{size}: CPU over traceinsight's", ratio(times, "cpu_s"), 1 / TARGET_TIMES_FASTER, "", 3),
            Figure(
                f"{size}: the same, without sequences", ratio(times, "comparable_cpu_s"), 1 / TARGET_TIMES_FASTER, "", 3
            ),
            Figure(f"{size}: peak memory over traceinsight's", ratio(times, "peak_mb"), 1.0, "", 3),
        ]
    for times in TIMES:
        stats += _over_floor(best, times)
    linear = best["ours", most]["cpu_s"] / best["ours", 1]["cpu_s"] / most
    return [
        *stats,
        Figure("218,203 events: peak memory", best["ours", 2]["peak_mb"], TARGET_MB, "MB"),
        Figure(f"trace x{most}: CPU an event over that of x1", linear, MOST_ABOVE_LINEAR, "", 2),
    ]


def _over_floor(best: dict[tuple[str, int], dict[str, float]], times: int) -> list[Figure]:
    floor, report = best["floor", times], best["report", times]
    allowed_s = MOST_OVER_FLOOR * floor["cpu_s"] + 1e-6 * floor["events"]
    memory = report["peak_mb"] / floor["peak_mb"]
    size = f"trace x{times}"
    return [
        Figure(f"{size}: CPU over 1.3 floors and 1 us an event", report["cpu_s"] / allowed_s, 1.0, "", 2),
        Figure(f"{size}: peak memory over the floor's", memory, MOST_MEMORY_OVER_FLOOR, "", 2),
    ]


def repeated(source: Path, times: int, folder: Path) -> Path:
    """Write the trace ``times`` times in a row, each with its own steps, launches and operators; return the file."""
    if times == 1:
        return source
    data = json.loads(gzip.decompress(source.read_bytes()))
    events = data.pop("traceEvents")
    path = folder / f"x{times}.pt.trace.json.gz"
    with gzip.open(path, "wt", 4) as file:
        file.write('{"traceEvents": [' + ",".join(map(json.dumps, events)))
        for copy in range(1, times):
            file.write("," + ",".join(map(json.dumps, _copied(events, copy))))
        file.write("], " + json.dumps(data)[1:])
    return path


def _copied(events: Sequence[dict[str, Any]], copy: int) -> Iterator[dict[str, Any]]:
    spans = [event for event in events if event.get("ph") == "X" and event.get("cat") != "Trace"]
    length_us = max(event["ts"] + event["dur"] for event in spans) - min(event["ts"] for event in spans) + 10
    steps = 1 + max(int(event["name"].split("#")[1]) for event in spans if event["name"].startswith("ProfilerStep#"))
    # Numbers go on where those of the copy before end: a gap would be one of events that were left out. Operators have
    # numbers of their own.
    lengths = {
        is_operator: copy * _range([span for span in spans if _is_operator(span) is is_operator])
        for is_operator in (True, False)
    }
    for event in events:
        if event.get("ph") == "M" or event.get("cat") == "Trace":
            continue
        new = event | {"ts": event["ts"] + copy * length_us}
        length = lengths[_is_operator(event)]
        if "id" in event:
            new["id"] = event["id"] + length
        if "args" in event:
            args = event["args"]
            new["args"] = args | {key: args[key] + length for key in _IDS if args.get(key, 0) > 0}
        if event["name"].startswith("ProfilerStep#"):
            new["name"] = f"ProfilerStep#{int(event['name'].split('#')[1]) + copy * steps}"
        yield new


def _is_operator(event: Mapping[str, Any]) -> bool:
    return event.get("cat") in ("cpu_op", "user_annotation")


def _range(spans: Sequence[Mapping[str, Any]]) -> int:
    ids: list[int] = [span.get("args", {}).get(key, 0) for span in spans for key in _IDS]
    ids = [number for number in ids if number > 0]
    return 1 + max(ids) - min(ids)


def _cpu_s() -> float:
    children = getrusage(RUSAGE_CHILDREN)
    return process_time() + children.ru_utime + children.ru_stime


def measure_ours(path: Path) -> dict[str, float]:
    """Return our cost of one file."""
    import gc

    from training_profiler.trace_analysis.report_figures import trace_data
    from training_profiler.trace_analysis.trace import analyse

    gc.disable()  # as the command does
    begin_s = _cpu_s()
    analysis = analyse(path)
    json.dumps(trace_data(analysis))
    cpu_s = _cpu_s() - begin_s
    return {"events": analysis.events, "cpu_s": cpu_s, "comparable_cpu_s": cpu_s}


def measure_report(path: Path) -> dict[str, float]:
    """Return the cost of what ``trace FILE`` prints."""
    from training_profiler.cli.trace import prepare_process, summary_of

    prepare_process()
    begin_s = _cpu_s()
    summary_of(path)
    cpu_s = _cpu_s() - begin_s
    return {"events": 0, "cpu_s": cpu_s, "comparable_cpu_s": cpu_s}


def measure_floor(path: Path) -> dict[str, float]:
    """Return the cost of unpacking and decoding one file."""
    import gc

    import msgspec

    from training_profiler.trace_analysis.reader import TraceEvent

    file_type: Any = msgspec.defstruct("File", [("traceEvents", list[TraceEvent])], gc=False)
    gc.disable()
    begin_s = _cpu_s()
    content = path.read_bytes()
    text = gzip.decompress(content) if path.suffix == ".gz" else content
    events = len(msgspec.json.decode(text, type=file_type).traceEvents)
    cpu_s = _cpu_s() - begin_s
    return {"events": events, "cpu_s": cpu_s, "comparable_cpu_s": cpu_s}


def measure_tracelens(path: Path) -> dict[str, float]:
    """Return the cost of TraceLens' report of one file, written as CSV files."""
    from TraceLens.Reporting.generate_perf_report_pytorch import generate_perf_report_pytorch

    with TemporaryDirectory() as folder:
        begin_s = _cpu_s()
        generate_perf_report_pytorch(str(path), output_csvs_dir=folder)
        cpu_s = _cpu_s() - begin_s
    return {"events": 0, "cpu_s": cpu_s, "comparable_cpu_s": cpu_s}


def measure_theirs(path: Path) -> dict[str, float]:
    """Return the cost of one file for traceinsight. A failed analysis counts up to its failure."""
    from hta.trace_analysis import TraceAnalysis

    begin_s = _cpu_s()
    analysis = TraceAnalysis(trace_files={0: str(path)}, trace_dir="")
    cpu_s = _cpu_s() - begin_s
    sequences_s = 0.0
    with TemporaryDirectory() as folder:
        for name, options in ANALYSES.items():
            is_sequences = name == "get_frequent_cuda_kernel_sequences"
            given = options | ({"output_dir": folder} if is_sequences else {})
            begin_s = _cpu_s()
            with contextlib.suppress(Exception):
                getattr(analysis, name)(**given)
            analysis_s = _cpu_s() - begin_s
            cpu_s += analysis_s
            sequences_s += analysis_s if is_sequences else 0.0
    return {"events": 0, "cpu_s": cpu_s, "comparable_cpu_s": cpu_s - sequences_s}


MEASURE: Final[dict[str, Callable[[Path], dict[str, float]]]] = {
    "floor": measure_floor,
    "report": measure_report,
    "ours": measure_ours,
    "traceinsight": measure_theirs,
    "TraceLens": measure_tracelens,
}


def inside(side: str, path: str) -> None:
    """Measure in this process and print the figures as JSON, without other output."""
    with open(os.devnull, "w") as nothing, contextlib.redirect_stdout(nothing):
        result = MEASURE[side](Path(path))
    # kB (proc_pid_status(5)). Not ru_maxrss: that begins with the value of the parent at the fork.
    status = Path("/proc/self/status").read_text()
    peak_kb = int(status.partition("VmHWM:")[2].split()[0])
    print(json.dumps(result | {"peak_mb": peak_kb * 1024 / 1e6}))


def main() -> None:
    """Run it from the command line."""
    parser = argparse.ArgumentParser(description="Time and memory of trace analysis")
    parser.add_argument("--large", action="store_true", help="compare with the floor for up to 3.5 million events")
    parser.add_argument(
        "--beside", nargs="+", type=Path, metavar="FILE", help="compare with TraceLens and traceinsight"
    )
    parser.add_argument("--inside", nargs=2, metavar=("SIDE", "FILE"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.inside:
        inside(*options.inside)
    elif options.large:
        run_large()
    elif options.beside:
        run_beside(options.beside)
    else:
        run()


if __name__ == "__main__":
    main()
