"""The status line between reports."""

from training_profiler.reports.layout import shortened
from training_profiler.snapshot.snapshot import PROFILER, Snapshot
from training_profiler.units import three_digits

MOST_SECTIONS = 3
NAME_WIDTH = 20
LEAST_SHARE = 0.01


def status_text(steps: int, steps_per_s: float | None, detail: str, width: int) -> str:
    """Return the line, shorter than ``width``: the last column would begin the next line."""
    parts = [f"Profiler: step {steps}"]
    if steps_per_s:
        parts.append(f"{three_digits(steps_per_s)} steps/s")
    if detail:
        parts.append(detail)
    line = " | ".join(parts)
    while len(line) >= width and ", " in line:  # the smallest section comes last
        line = line.rpartition(", ")[0]
    return line[: width - 1]


def largest_sections(snapshot: Snapshot) -> str:
    """Return the sections that took most of an interval: ``forward_pass 41%, data_loading 30%``."""
    shares = [
        (section.share, section.name)
        for section in snapshot.sections.values()
        if section.share and section.share >= LEAST_SHARE and section.name != PROFILER
    ]
    largest = sorted(shares, reverse=True)[:MOST_SECTIONS]
    return ", ".join(f"{shortened(name, NAME_WIDTH)} {share:.0%}" for share, name in largest)
