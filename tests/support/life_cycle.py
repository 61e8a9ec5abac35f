"""Records in which order the parts of a session are started, used and closed, in a process of its own."""

import functools
import importlib
import os
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

REPOSITORY: Final = Path(__file__).parents[2]
# (module, class, method): label
CALLS: Final = {
    ("recording.recorder", "Recorder", "discard"): "discard events",
    ("runtime.shutdown", "Shutdown", "install"): "install shutdown",
    ("runtime.shutdown", "Shutdown", "remove"): "remove shutdown",
    ("sampling.line_sampler", "LineSampler", "start"): "start line sampler",
    ("sampling.line_sampler", "LineSampler", "close"): "close line sampler",
    ("sampling.line_sampler", "LineSampler", "after_fork_in_child"): "forget line sampler",
    ("device.device_time", "DeviceTime", "start"): "start device time",
    ("device.device_time", "DeviceTime", "close"): "close device time",
    ("device.device_time", "DeviceTime", "after_fork_in_child"): "forget device time",
    ("sampling.machine_sampler", "MachineSampler", "start"): "start machine sampler",
    ("sampling.machine_sampler", "MachineSampler", "close"): "close machine sampler",
    ("sampling.machine_sampler", "MachineSampler", "after_fork_in_child"): "forget machine sampler",
    ("torch_capture.controller", "Captures", "close"): "close capture",
    ("torch_capture.controller", "Captures", "wait_for_file"): "wait for capture file",
    ("torch_capture.controller", "Captures", "after_fork_in_child"): "forget capture",
    ("sinks.trackers", "Trackers", "choose"): "choose trackers",
    ("sinks.trackers", "Trackers", "end"): "end trackers",
    ("sinks.trackers", "Trackers", "wait"): "wait for trackers",
    ("sinks.trackers", "Trackers", "after_fork_in_child"): "forget trackers",
    ("ranks.channel", "RankChannel", "start"): "start rank channel",
    ("ranks.channel", "Outbox", "put"): "send to rank 0",
    ("ranks.channel", "RankChannel", "close"): "close rank channel",
    ("ranks.channel", "RankChannel", "after_fork_in_child"): "forget rank channel",
    ("runtime.outputs", "Outputs", "open_journal"): "open journal",
    ("storage.journal", "JournalLines", "interval"): "journal: interval",
    ("storage.journal", "JournalLines", "epoch_begin"): "journal: epoch begin",
    ("storage.journal", "JournalLines", "epoch_end"): "journal: epoch end",
    ("storage.journal", "JournalLines", "rank"): "journal: rank",
    ("runtime.outputs", "Outputs", "_write_report"): "write report",
    ("runtime.outputs", "Outputs", "close"): "close journal",
    ("runtime.outputs", "Outputs", "settle"): "wait for files",
    ("runtime.outputs", "Outputs", "stop"): "stop threads",
    ("runtime.terminal", "Terminal", "_hand_over"): "print",
    ("runtime.instrumentation", "Instrumentation", "close"): "close instrumentation",
    ("runtime.instrumentation", "Instrumentation", "after_fork_in_child"): "forget instrumentation",
}


def record_calls(path: str) -> None:
    """Append each call that the main thread makes to ``path``, and whether a forked child made it."""
    descriptor, process = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND), os.getpid()
    under_way: list[str] = []

    def wrapped(kind: str, label: str, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def call(*args: Any, **kwargs: Any) -> Any:
            if threading.current_thread() is not threading.main_thread() or kind in under_way:
                return original(*args, **kwargs)
            os.write(descriptor, f"{'' if os.getpid() == process else 'child: '}{label}\n".encode())
            under_way.append(kind)
            try:
                return original(*args, **kwargs)
            finally:
                under_way.pop()

        return call

    session = importlib.import_module("training_profiler.runtime.session")
    session.FIRST_FLUSH_S = 3600.0  # on another thread
    session.WAIT_FOR_DISK_S = 60.0  # on a busy machine the folder is made late, and the opening line comes later
    for (module, kind, method), label in CALLS.items():
        of_class = getattr(importlib.import_module(f"training_profiler.{module}"), kind)
        setattr(of_class, method, wrapped(kind, label, getattr(of_class, method)))


def calls_of(tmp_path: Path, program: str, **variables: str) -> tuple[list[str], int]:
    """Return the calls of a program whose profiling is on, without repetitions, and its exit status."""
    calls = tmp_path / "calls.txt"
    head = f"from tests.support.life_cycle import record_calls\nrecord_calls({str(calls)!r})\n"
    done = subprocess.run(
        [sys.executable, "-c", head + "import training_profiler as tp\n" + textwrap.dedent(program)],
        cwd=REPOSITORY,
        env={**os.environ, "RECTIFIED_FLOW_PROFILE": "1", "RECTIFIED_FLOW_PROFILE_DIR": str(tmp_path), **variables},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert "Traceback" not in done.stderr, done.stderr
    lines = calls.read_text(encoding="utf-8").splitlines()
    return [line for line, before in zip(lines, [None, *lines], strict=False) if line != before], done.returncode
