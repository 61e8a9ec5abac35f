"""Builds small traces: events in us, in the format of Kineto."""

import gzip
import json
from pathlib import Path
from typing import Any

import msgspec
from hypothesis import HealthCheck, settings

from training_profiler.trace_analysis.columns import Columns
from training_profiler.trace_analysis.event_table import columns_of
from training_profiler.trace_analysis.reader import RawTrace, TraceEvent
from training_profiler.trace_analysis.trace import Trace as AnalysedTrace
from training_profiler.trace_analysis.trace import analyse

LOOP, AUTOGRAD = 1, 2  # threads of the host
QUICK = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=40, deadline=None)


class Trace:
    """Collects events. Times are us, as numbers or as texts for the file."""

    def __init__(self, **top: Any) -> None:
        self.events: list[dict[str, Any]] = []
        self.top = top
        self._correlation = 0

    def event(self, cat: str, name: str, ts: Any, dur: Any, *, tid: Any = LOOP, pid: Any = 7, **args: Any) -> "Trace":
        self.events.append(
            {"ph": "X", "cat": cat, "name": name, "pid": pid, "tid": tid, "ts": ts, "dur": dur, "args": args}
        )
        return self

    def op(self, name: str, ts: Any, dur: Any, **kwargs: Any) -> "Trace":
        return self.event("cpu_op", name, ts, dur, **kwargs)

    def call(self, name: str, ts: Any, dur: Any, **kwargs: Any) -> "Trace":
        return self.event("cuda_runtime", name, ts, dur, **kwargs)

    def mark(self, name: str, ts: Any, dur: Any, **kwargs: Any) -> "Trace":
        return self.event("user_annotation", name, ts, dur, **kwargs)

    def step(self, number: int, ts: Any, dur: Any) -> "Trace":
        return self.mark(f"ProfilerStep#{number}", ts, dur)

    def kernel(
        self, name: str, ts: Any, dur: Any, *, device: int = 0, stream: int = 7, cat: str = "kernel",
        launched: tuple[Any, Any] | None = None, by: str = "cudaLaunchKernel", tid: int = LOOP, **args: Any,
    ) -> "Trace":  # fmt: skip
        """Add device work. ``launched`` (begin, duration) also adds the call that launched it."""
        if launched is not None:
            self._correlation += 1
            self.call(by, *launched, tid=tid, correlation=self._correlation)
            args["correlation"] = self._correlation
        return self.event(cat, name, ts, dur, tid=stream, pid=device, device=device, stream=stream, **args)

    def copy(self, direction: str, ts: Any, dur: Any, **kwargs: Any) -> "Trace":
        return self.kernel(f"Memcpy {direction}", ts, dur, cat="gpu_memcpy", by="cudaMemcpyAsync", **kwargs)

    def memory(self, ts: Any, change: int, *, device: int = 0, kind: int = 1, **args: Any) -> "Trace":
        fields = {"Bytes": change, "Device Type": kind, "Device Id": device} | args
        self.events.append({"ph": "i", "cat": "cpu_instant_event", "name": "[memory]", "ts": ts, "args": fields})
        return self

    def counter(self, name: str, ts: Any, value: Any, *, pid: Any = "GPU 0 Counters", series: str = "") -> "Trace":
        args = value if isinstance(value, dict) else {series: value}
        self.events.append({"ph": "C", "cat": "hardware_counters", "name": name, "pid": pid, "ts": ts, "args": args})
        return self

    def text(self) -> str:
        return json.dumps(self.top | {"traceEvents": self.events})

    def write(self, folder: Path, name: str = "a.pt.trace.json") -> Path:
        path = folder / name
        data = self.text().encode()
        path.write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
        return path

    def columns(self) -> Columns:
        """Return the columns of these events, without a file."""
        events = msgspec.json.decode(json.dumps(self.events), type=list[TraceEvent])
        return columns_of([RawTrace(events, [], {})], "a trace")

    def analysed(self, folder: Path) -> AnalysedTrace:
        return analyse(self.write(folder))


def gpu(name: str = "NVIDIA H100", capability: int = 90, memory: int = 80 * 2**30) -> dict[str, Any]:
    """Return the properties of a device in a trace."""
    return {"name": name, "computeMajor": capability // 10, "computeMinor": capability % 10, "totalGlobalMem": memory}
