"""Text and tables of the two standalone tools, in lines of at most 80 characters wherever that is possible."""

import textwrap
from collections.abc import Sequence
from typing import Final

from tabulate import tabulate

WIDTH: Final = 80
MIN_NAME: Final = 12  # characters that a name keeps even if the line becomes too long
_BETWEEN: Final = 2  # spaces between columns


def table(
    headers: Sequence[str], rows: Sequence[Sequence[object]], left: Sequence[int] = (0,), name: int | None = 0
) -> str:
    """Return a table, or "(nothing)" without rows; a header may have several lines.

    Args:
        headers: one per column.
        rows: the cells; None is an empty one.
        left: the columns that are left-aligned. All others are right-aligned.
        name: the column whose cells are shortened if the table is too wide; None for no column.
    """
    if not rows:
        return "(nothing)"
    cells = [["" if cell is None else str(cell) for cell in row] for row in rows]
    if name is not None:
        room = _room(headers, cells, name)
        cells = [[shortened(cell, room) if i == name else cell for i, cell in enumerate(row)] for row in cells]
    # The headers are a row: tabulate makes columns wider than their headers, for which 80 columns have no room.
    text = tabulate(
        [list(headers), *cells],
        tablefmt="plain",
        colalign=["left" if i in left else "right" for i in range(len(headers))],
        disable_numparse=True,
        preserve_whitespace=True,
    )
    return "\n".join(line.rstrip() for line in text.splitlines())


def with_details(text: str, details: Sequence[str], indent: str = "    ") -> str:
    """Return a table with a line below each row; an empty detail gives no line."""
    if not details:
        return text
    lines = text.splitlines()
    first = len(lines) - len(details)
    parts = lines[:first]
    for row, detail in zip(lines[first:], details, strict=True):
        parts.append(row)
        if detail:
            parts.append(indent + shortened(detail, WIDTH - len(indent)))
    return "\n".join(parts)


def _room(headers: Sequence[str], cells: Sequence[Sequence[str]], name: int) -> int:
    widths = [
        max(map(len, (*header.split("\n"), *column)))
        for header, column in zip(headers, zip(*cells, strict=True), strict=True)
    ]
    return max(MIN_NAME, WIDTH - sum(widths) + widths[name] - _BETWEEN * (len(widths) - 1))


def shortened(text: str, most: int) -> str:
    """Return ``text`` in one line of at most ``most`` characters, cut in the middle; unprintable ones become spaces."""
    if len(text) > most:
        end = (most - 1) // 3
        text = f"{text[: most - end - 1]}…{text[len(text) - end :]}"
    return "".join(c if c.isprintable() else " " for c in text)


def wrapped(text: str, first: str = "", rest: str = "") -> str:
    """Return ``text`` in lines of 80 characters, the first after ``first``, the others after ``rest``."""
    return textwrap.fill(
        text, WIDTH, initial_indent=first, subsequent_indent=rest, break_long_words=False, break_on_hyphens=False
    )
