"""Growth of resident memory over five million sections: ``python -m benchmarks.memory``."""

import json
import os
import sys
from pathlib import Path
from typing import Final

from benchmarks.children import result_of
from benchmarks.figures import Figure, print_figures, print_table

TARGET_MB: Final = 1.0
MILLIONS: Final = 5
WARMUP_SPANS: Final = 200_000
SPANS_A_STEP: Final = 100
NAMES: Final = ("data_loading", "data_transfer", "forward_pass", "backward_pass", "optimizer_step")


def run() -> list[Figure]:
    """Measure, print and return the growth of memory; takes some seconds."""
    resident_bytes: list[int] = result_of("benchmarks.memory", "--inside", is_on=True)
    first_bytes = resident_bytes[0]
    print(f"Resident memory, {len(NAMES)} names, steps of {SPANS_A_STEP} sections, a report every 50 steps")
    rows = [
        [f"{millions} million", f"{now_bytes / 1e6:.3f}", f"{(now_bytes - first_bytes) / 1e6:+.3f}"]
        for millions, now_bytes in enumerate(resident_bytes)
    ]
    print_table([f"sections after {WARMUP_SPANS} to warm up", "MB", "growth MB"], rows)
    growth_mb = (max(resident_bytes) - first_bytes) / 1e6
    stats = [Figure(f"growth of memory over {MILLIONS} million sections", growth_mb, TARGET_MB, "MB", 3)]
    print_figures(stats)
    return stats


def resident_now_bytes() -> int:
    """Return the resident memory of this process."""
    # second field: resident pages (proc_pid_statm(5))
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def measure() -> list[int]:
    """Return the resident bytes after warming up, and then after each million sections."""
    from training_profiler import is_profiling_enabled, start_training_profiling

    start_training_profiling()
    assert is_profiling_enabled()
    record(WARMUP_SPANS)
    resident_bytes = [resident_now_bytes()]
    for _ in range(MILLIONS):
        record(1_000_000)
        resident_bytes.append(resident_now_bytes())
    return resident_bytes


def record(spans: int) -> None:
    """Run ``spans`` sections in whole steps."""
    from training_profiler import profile_section, profile_step

    for _ in range(spans // SPANS_A_STEP):
        for _ in range(SPANS_A_STEP // len(NAMES)):
            for name in NAMES:
                with profile_section(name):
                    pass
        profile_step()


if __name__ == "__main__":
    if sys.argv[1:] == ["--inside"]:
        print(json.dumps(measure()))
    else:
        run()
