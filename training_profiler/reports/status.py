"""The status line between reports."""

from collections.abc import Mapping

from training_profiler.base.text import PREFIX
from training_profiler.base.units import three_digits
from training_profiler.reports.labels import table_label
from training_profiler.reports.layout import shortened
from training_profiler.snapshot.snapshot import PROFILER, Snapshot

MOST_SECTIONS = 3
NAME_WIDTH = 40
LEAST_SHARE = 0.01


def status_text(steps: int, steps_per_s: float | None, detail: str, width: int) -> str:
    """Return the line, shorter than ``width``: the last column would begin the next line."""
    parts = [f"{PREFIX}step {steps}"]
    if steps_per_s:
        parts.append(f"{three_digits(steps_per_s)} steps/s")
    if detail:
        parts.append(detail)
    line = " | ".join(parts)
    while len(line) >= width and ", " in line:  # the smallest section comes last
        line = line.rpartition(", ")[0]
    return line if len(line) < width else shortened(line, width - 1)


def largest_sections(snapshot: Snapshot) -> str:
    """Return the sections that took most of an interval: ``forward_pass 41%, data_loading 30%``."""
    return largest_shares({name: section.share for name, section in snapshot.sections.items() if section.share})


def largest_shares(shares: Mapping[str, float]) -> str:
    """Return the largest parts of an interval by section, as ``largest_sections`` does."""
    shown = [(share, name) for name, share in shares.items() if share >= LEAST_SHARE and name != PROFILER]
    largest = sorted(shown, reverse=True)[:MOST_SECTIONS]
    return ", ".join(f"{shortened(table_label(name, shares), NAME_WIDTH)} {share:.0%}" for share, name in largest)
