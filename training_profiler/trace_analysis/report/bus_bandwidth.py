"""How fast collectives are, beside what the link between the devices can do, as text."""

from collections import Counter
from collections.abc import Sequence
from typing import Final

from training_profiler.base.table import table, wrapped
from training_profiler.trace_analysis.bus_bandwidth import BusBandwidth
from training_profiler.trace_analysis.report.formats import amount, ms, percent

MOST_ROWS: Final = 15
UNKNOWN: Final = "unknown"


def bus_bandwidth(found: Sequence[BusBandwidth]) -> str:
    """Return the collectives with most time, each with its bus bandwidth, and what is not known."""
    shown = found[:MOST_ROWS]
    rows = [
        (
            row.kind,
            amount(row.message_bytes) or UNKNOWN,
            row.group_size or UNKNOWN,
            row.count,
            _gb_s(row.mean_gb_s),
            _gb_s(row.best_gb_s),
            percent(row.share_of_link) or ("over 100%" if row.is_above_link else UNKNOWN),
        )
        for row in shown
    ]
    headers = ("bus bandwidth\n(GB/s)", "message", "group", "runs", "mean", "best", "best, of\nthe link")
    lines = [table(headers, rows)]
    if len(found) > len(shown):
        lines.append(f"({len(found) - len(shown)} more; --json has all)")
    links = dict.fromkeys(f"{row.link.gb_s:g} GB/s in each direction ({row.link.source})" for row in shown if row.link)
    lines += [wrapped(f"The link: {link}") for link in links]
    lacking: Counter[str] = Counter()
    for row in found:
        lacking.update(dict.fromkeys(row.lacks, row.total_ns))
    if lacking:
        listed = ", ".join(f"{what} ({ms(ns)})" for what, ns in lacking.most_common())
        lines.append(wrapped(f"Not known, by time of communication: {listed}"))
    return "\n".join(lines)


def _gb_s(value: float | None) -> str:
    return UNKNOWN if value is None else f"{value:.3g}" if value < 10 else f"{value:.1f}"
