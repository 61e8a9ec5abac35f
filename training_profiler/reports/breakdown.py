"""The two parts that every report has: the breakdown by section, and how the time divides among sections."""

from collections.abc import Sequence
from typing import Final

from training_profiler.base.units import ms_column, rounded
from training_profiler.reports.device import HEADER, device_cell, device_words
from training_profiler.reports.distribution import INDENT, distribution, in_tree_order, lines_under
from training_profiler.reports.labels import table_label
from training_profiler.reports.layout import WIDTH, Layout, column_width, shortened, table
from training_profiler.snapshot.snapshot import BETWEEN, PROFILER, SectionStats, Snapshot

TIMES: Final = ("avg", "min", "max")
MORE_TIMES: Final = ("p50", "p95", "p99", "std")  # where the terminal is wide enough
MIN_NAME_WIDTH: Final = 24
MIN_PLACE_WIDTH: Final = 10
ROOM_FOR_SHARE: Final = 14  # indentation, the spaces between the columns and the percentage


def breakdown_lines(snapshot: Snapshot, layout: Layout) -> list[str]:
    """Return the detailed breakdown and the time distribution, each below its title."""
    return [
        "Detailed Breakdown:",
        *_breakdown(snapshot, layout),
        "",
        "Time Distribution:",
        *(_distribution(snapshot, layout) or ["(no time has passed on the clock)"]),
    ]


def _breakdown(snapshot: Snapshot, layout: Layout) -> list[str]:
    rows = list(in_tree_order(snapshot.sections))
    if not rows:
        return ["(no section has ended yet)"]
    # The profiler has time before it has a span: this report is part of its first span.
    rows = [(depth, section) for depth, section in rows if section.count or section.name != PROFILER]
    if layout.is_lines:
        return [_line(snapshot, section) for _, section in rows]
    return _table(snapshot, rows, layout)


def _table(snapshot: Snapshot, rows: list[tuple[int, SectionStats]], layout: Layout) -> list[str]:
    """Return the table with the columns that fit, and names shortened where even the fewest do not."""
    names = [INDENT * depth + table_label(section.name, snapshot.sections) for depth, section in rows]
    for times in ((*TIMES, *MORE_TIMES), TIMES):
        columns = _columns(snapshot, [section for _, section in rows], times)
        room = layout.width - sum(column_width(header, cells) for header, *cells in columns)
        if layout.width > WIDTH and room >= min(MIN_NAME_WIDTH, max(map(len, names), default=0)):
            break
    names = ["section", *(shortened(name, room) for name in names)]
    headers, *cells = zip(names, *columns, strict=True)
    return table(headers, cells)


def _columns(snapshot: Snapshot, sections: Sequence[SectionStats], times: Sequence[str]) -> list[list[str]]:
    """Return the columns right of the name, each with its header, one unit and one number of decimals."""
    columns = [
        ["count", *(str(section.count or "") for section in sections)],
        ["total\n(s)", *(rounded(section.total_s, 3) for section in sections)],
        *([f"{name}\n(ms)", *ms_column([getattr(section, f"{name}_s") for section in sections])] for name in times),
    ]
    if snapshot.device is not None:
        columns.append([f"{HEADER}\n(ms)", *(device_cell(section) for section in sections)])
    return columns


def _line(snapshot: Snapshot, section: SectionStats) -> str:
    times = "".join(
        f", {name}={seconds:.4f}s" for name in TIMES if (seconds := getattr(section, f"{name}_s")) is not None
    )
    total = f"{section.name}: count={section.count}, total={section.total_s:.3f}s"
    return total + times + device_words(snapshot, section)


def _distribution(snapshot: Snapshot, layout: Layout) -> list[str]:
    return _share_lines(snapshot) if layout.is_lines else _share_rows(snapshot, layout)


def _share_lines(snapshot: Snapshot) -> list[str]:
    lines = []
    for _, section, share in distribution(snapshot):
        lines.append(f"{section.name}: {share:.1f}%")
        places = lines_under(snapshot, section, share)
        lines += [f"{section.name}: {place} {function}: {part:.1f}%" for place, function, part in places]
    return lines


def _share_rows(snapshot: Snapshot, layout: Layout) -> list[str]:
    """Return a row a section, and below it the lines of the user's code that its time goes to.

    The shares of those lines are parts of the section's own, so they stand right of the column that adds up to 100.
    """
    has_steps = snapshot.steps > 0
    rows = [
        (
            INDENT * depth + table_label(section.name, snapshot.sections, has_steps),
            share,
            section,
            [_fitting(line, layout.width) for line in lines_under(snapshot, section, share)],
            depth,
        )
        for depth, section, share in distribution(snapshot)
    ]
    width = min(layout.width - 10, max((len(label) for label, *_ in rows), default=0))
    places = [INDENT * (depth + 2) + place for *_, lines, depth in rows for place, _, _ in lines]
    functions = [function for *_, lines, _ in rows for _, function, _ in lines]
    # Two spaces between columns, seven for the percentage.
    place_width = min(max(map(len, places), default=0), layout.width - MIN_PLACE_WIDTH - 10)
    function_width = max(width + 6 - place_width, *map(len, functions), 0)
    function_width = max(MIN_PLACE_WIDTH, min(function_width, layout.width - place_width - 10))
    text = []
    for label, share, section, lines, depth in rows:
        text.append(f"{shortened(label, width):<{width}}  {share:5.1f}%{_elsewhere(section, layout.width - width - 8)}")
        for place, function, part in lines:
            place = shortened(INDENT * (depth + 2) + place, place_width)
            function = shortened(function, function_width)
            text.append(f"{place:<{place_width}}  {function:<{function_width}}  {part:5.1f}%")
    return text


def _fitting(line: tuple[str, str, float], width: int) -> tuple[str, str, float]:
    """Return a line of a library by its innermost frame, where the frames around it leave no room for that."""
    place, function, share = line
    inner_place, _, inner_function = function.rpartition(BETWEEN)[2].partition(" ")
    if len(place) + len(function) <= width - ROOM_FOR_SHARE or not (inner_function and ":" in inner_place):
        return line
    return inner_place, inner_function, share


def _elsewhere(section: SectionStats, room: int) -> str:
    if not section.elsewhere_s:
        return ""
    text = f"  (and {section.elsewhere_s:.3f} s on other threads, in parallel)"
    return text if len(text) <= room else f"  (+{section.elsewhere_s:.3f} s on other threads)"
