"""A copy of a trace for Perfetto with what the analysis found.

That is gaps with their causes, the critical path, queue length, and bandwidth of copies.
"""

import gzip
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np

from training_profiler.base.errors import TraceError
from training_profiler.trace_analysis.critical_path import spans_of
from training_profiler.trace_analysis.load.columns import GAP_CATEGORY, NONE, PATH_CATEGORY, Columns, Ints
from training_profiler.trace_analysis.load.reader import read_text
from training_profiler.trace_analysis.path_graph import Graph
from training_profiler.trace_analysis.trace import Trace, analyse

PROCESS: Final = "training-profiler"
_LIST: Final = re.compile(rb'"traceEvents"\s*:\s*\[|^\s*\[')


def annotated(path: Path) -> bytes:
    """Return the trace in ``path`` with more events: all of its own are kept as they are. Gzipped if the file is.

    Raises:
        TraceError: The file cannot be read or is not a trace. The message has one line.
    """
    analysis = analyse(path)
    text = read_text(path)
    begin = _LIST.search(text)
    if begin is None:
        raise TraceError(f"{path} cannot be annotated: its list of events was not found")
    added = ",\n".join(_written(event) for event in _events(analysis)).encode()
    copy = b"".join((text[: begin.end()], b"\n", added, b",\n", text[begin.end() :]))
    return gzip.compress(copy, compresslevel=4, mtime=0) if path.suffix == ".gz" else copy


def _events(analysis: Trace) -> Iterator[dict[str, Any]]:
    yield _named("process_name", 0, PROCESS)
    for device in analysis.devices:
        yield _named("thread_name", device.index, f"gaps of device {device.index}")
    for place in analysis.idle_times:
        gap = place.gap
        details = {
            "step": place.step,
            "module": place.module,
            "line": place.line,
            "host in": place.stall.by,
            "ended by": place.next_name,
            "launched by": place.operator,
        }
        yield {
            "ph": "X",
            "cat": GAP_CATEGORY,
            "name": gap.cause,
            "pid": PROCESS,
            "tid": gap.device,
            "ts": gap.begin_ns,
            "dur": gap.length_ns,
            "args": {key: value for key, value in details.items() if value},
        }
    yield from _path(analysis)
    for device in analysis.devices:
        yield from _counters(analysis.columns, analysis.launches.call, device.index)


def _path(analysis: Trace) -> Iterator[dict[str, Any]]:
    """Yield the critical path; nothing if it is unknown."""
    if not isinstance(analysis.graph, Graph):
        return
    thread = 1 + max((device.index for device in analysis.devices), default=0)
    yield _named("thread_name", thread, "critical path")
    for span in spans_of(analysis.graph):
        yield {
            "ph": "X",
            "cat": PATH_CATEGORY,
            "name": span.name or span.kind,
            "pid": PROCESS,
            "tid": thread,
            "ts": span.begin_ns,
            "dur": span.end_ns - span.begin_ns,
            "args": {"kind": span.kind},
        }


def _named(what: str, thread: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": what, "pid": PROCESS, "tid": thread, "args": {"name": name}}


def _counters(columns: Columns, call: Ints, device: int) -> Iterator[dict[str, Any]]:
    works = np.flatnonzero(columns.is_gpu() & (columns.device == device) & (call != NONE))
    begins = columns.begin_ns[works]
    launched = np.minimum(columns.begin_ns[call[works]], begins)
    yield from _counter(f"queued work of device {device}", "launched", launched, begins, np.ones(len(works)))
    copies = np.flatnonzero(columns.is_of("gpu_memcpy") & (columns.device == device) & (columns.bytes > 0))
    lengths = columns.end_ns[copies] - columns.begin_ns[copies]
    copies, lengths = copies[lengths > 0], lengths[lengths > 0]
    rates = columns.bytes[copies] / lengths  # bytes per ns are GB per s
    name = f"copies of device {device}"
    yield from _counter(name, "GB/s", columns.begin_ns[copies], columns.end_ns[copies], rates)


def _counter(
    name: str, unit: str, begin_ns: Ints, end_ns: Ints, height: "np.ndarray[Any, np.dtype[np.float64]]"
) -> Iterator[dict[str, Any]]:
    """Yield a counter that is the sum of ``height`` over what is open at each time."""
    at_ns = np.concatenate([begin_ns, end_ns])
    changes = np.concatenate([height, -height])
    order = np.argsort(at_ns, kind="stable")
    times, sums = at_ns[order], np.cumsum(changes[order])
    is_last = np.append(times[1:] != times[:-1], True)[: len(times)]  # of several changes at a time the sum counts
    for at, value in zip(times[is_last].tolist(), sums[is_last].tolist(), strict=True):
        shown = round(abs(value), 3)
        yield {"ph": "C", "name": name, "pid": PROCESS, "tid": 0, "ts": at, "args": {unit: shown}}


def _written(event: Mapping[str, Any]) -> str:
    """Return an event as JSON; times are given in ns and written in us, digit by digit: a float has too few."""
    times = "".join(f', "{key}": {event[key] // 1000}.{event[key] % 1000:03d}' for key in ("ts", "dur") if key in event)
    return json.dumps({key: value for key, value in event.items() if key not in ("ts", "dur")})[:-1] + times + "}"
