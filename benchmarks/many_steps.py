"""Memory, journal and report of a million short steps: ``python -m benchmarks.many_steps``."""

import json
import os
import resource
import subprocess
import sys
from pathlib import Path
from time import perf_counter
from typing import Any, Final

from benchmarks.children import SWITCH, result_of
from benchmarks.figures import Figure, print_figures, print_table
from benchmarks.memory import resident_now_bytes

STEPS: Final = 1_000_000
WARMUP_STEPS: Final = 50_000
POINTS: Final = 20  # at which memory is read
NAMES: Final = tuple(f"part_{number}" for number in range(20))  # one section each in a step
# The targets in RESULTS.md.
MOST_GROWTH_MB, MOST_JOURNAL_MB, MOST_REPORT_S = 5.0, 20.0, 2.0


def run() -> list[Figure]:
    """Measure, print and return the growth of memory, the journal's size and the time of a report; takes a minute."""
    result: dict[str, Any] = result_of("benchmarks.many_steps", "--inside", is_on=True)
    first, *later = result["resident_bytes"]
    print(f"{STEPS} steps of {len(NAMES)} sections, {1e6 * result['seconds'] / STEPS:.1f} us a step, no other work")
    at_steps = [WARMUP_STEPS + (STEPS - WARMUP_STEPS) * point // POINTS for point in range(POINTS + 1)]
    rows = [
        [steps, f"{now_bytes / 1e6:.2f}", f"{(now_bytes - first) / 1e6:+.2f}"]
        for steps, now_bytes in zip(at_steps, [first, *later], strict=True)
    ]
    print_table(["steps", "resident MB", "growth MB"], rows)
    stats = [
        Figure(f"{STEPS} steps: growth of memory", (max(later) - first) / 1e6, MOST_GROWTH_MB, "MB", 2),
        Figure(f"{STEPS} steps: journal", result["journal_bytes"] / 1e6, MOST_JOURNAL_MB, "MB", 2),
        Figure(f"{STEPS} steps: the report command, wall", result["report_s"], MOST_REPORT_S, "s", 2),
        Figure(f"{STEPS} steps: the report command, CPU", result["report_cpu_s"], MOST_REPORT_S, "s", 2),
    ]
    print_figures(stats)
    return stats


def measure() -> dict[str, Any]:
    """Train, and read memory, the journal and the report; called in a process of its own."""
    from training_profiler import start_training_profiling, stop_training_profiling

    start_training_profiling()
    begin_s = perf_counter()
    record(WARMUP_STEPS)
    resident_bytes = [resident_now_bytes()]
    for _ in range(POINTS):
        record((STEPS - WARMUP_STEPS) // POINTS)
        resident_bytes.append(resident_now_bytes())
    seconds = perf_counter() - begin_s
    stop_training_profiling()
    (folder,) = (path for path in Path(os.environ[f"{SWITCH}_DIR"]).iterdir() if path.is_dir())
    report_s, report_cpu_s = seconds_of([sys.executable, "-m", "training_profiler", "report", str(folder), "--json"])
    return {
        "seconds": seconds,
        "resident_bytes": resident_bytes,
        "journal_bytes": sum(path.stat().st_size for path in folder.glob("rank*.jsonl")),
        "report_s": report_s,
        "report_cpu_s": report_cpu_s,
    }


def record(steps: int) -> None:
    """Make so many steps, with a section of each name."""
    from training_profiler import profile_section, profile_step

    for _ in range(steps):
        for name in NAMES:
            with profile_section(name):
                pass
        profile_step()


def seconds_of(command: list[str]) -> tuple[float, float]:
    """Return the time of a command and its CPU time, in s."""
    before, begin_s = resource.getrusage(resource.RUSAGE_CHILDREN), perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=os.environ | {SWITCH: "0"})
    seconds, after = perf_counter() - begin_s, resource.getrusage(resource.RUSAGE_CHILDREN)
    return seconds, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


if __name__ == "__main__":
    if sys.argv[1:] == ["--inside"]:
        print(json.dumps(measure()))
    else:
        run()
