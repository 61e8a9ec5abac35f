"""Tables, as text, JSON, CSV and HTML; text is in lines of at most 80 characters wherever that is possible."""

import csv
import io
import shutil
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from tabulate import tabulate

from training_profiler.base import html

Value = float | int | str | None
WIDTH: Final = 80  # of files, pipes and wide terminals
MIN_WIDTH: Final = 40
MIN_NAME: Final = 12  # characters that a name keeps even if the line becomes too long
_BETWEEN: Final = 2  # spaces between columns
_FORMULA: Final = ("=", "+", "-", "@")  # a spreadsheet would compute a name that begins so


@dataclass(frozen=True, slots=True)
class Column:
    """A column that text shows."""

    name: str  # of the value in a row
    header: str = ""  # may have several lines; the name by default
    show: Callable[[Any], str] = str  # of values other than None, which text leaves empty


class Table:
    """Rows of named values, the same names in each: all of them for files, some of them for text.

    Args:
        rows: in files in this order.
        columns: that text shows.
    """

    def __init__(self, rows: Sequence[Mapping[str, Value]], columns: Sequence[Column] = ()) -> None:
        self.rows, self.columns = rows, columns

    def text(self, most: int, details: Sequence[str] = (), note: str = "") -> str:
        """Return at most so many rows as text, each with a detail below it, then a note and how many more there are.

        The first column is shortened if the table is too wide.
        """
        cells = [
            [None if row[column.name] is None else column.show(row[column.name]) for column in self.columns]
            for row in self.rows[:most]
        ]
        lines = [with_details(table([column.header or column.name for column in self.columns], cells), details)]
        lines += [note] if note else []
        more = len(self.rows) - most
        return "\n".join([*lines, f"({more} more; --json has all)"] if more > 0 else lines)

    def data(self) -> list[dict[str, Value]]:
        """Return the rows for JSON."""
        return [dict(row) for row in self.rows]

    def csv(self) -> str:
        """Return the table as CSV with a line of names (RFC 4180); "" without rows. Unknown values are empty."""
        if not self.rows:
            return ""
        text = io.StringIO()
        writer = csv.writer(text)
        writer.writerow(self.rows[0])
        for row in self.rows:
            cells = (
                f"'{cell}" if isinstance(cell, str) and cell.startswith(_FORMULA) else cell for cell in row.values()
            )
            writer.writerow(cells)
        return text.getvalue()

    def html(self, caption: str, most: int | None = None, by: str = "") -> html.Html:
        """Return at most so many rows as markup; those with most of the value ``by`` come first if it is given."""
        shown = sorted(self.rows, key=lambda row: -float(row[by] or 0)) if by else self.rows
        cells = [[_html_cell(value) for value in row.values()] for row in shown[:most]]
        headers = [name.replace("_", " ") for name in self.rows[0]] if self.rows else []
        return html.table(caption, headers, cells)


def _html_cell(value: Value) -> html.Cell:
    if isinstance(value, float):
        return html.Cell(f"{value:.3f}", value)
    return html.Cell(value, value) if isinstance(value, int) else html.Cell("" if value is None else value)


def text_width() -> int:
    """Return the width of text: the terminal's, or COLUMNS, from 40 to 80."""
    return max(MIN_WIDTH, min(WIDTH, shutil.get_terminal_size((WIDTH, 24)).columns))


def table(
    headers: Sequence[str], rows: Sequence[Sequence[object]], left: Sequence[int] = (0,), name: int | None = 0
) -> str:
    """Return a table, or "(nothing)" without rows; a header may have several lines.

    Args:
        headers: one per column.
        rows: the cells; None is an empty one.
        left: the columns that are left-aligned. All others are right-aligned.
        name: the column whose cells are shortened if the table is too wide; None for no column. On a narrow terminal
            the last columns are dropped before.
    """
    if not rows:
        return "(nothing)"
    cells = [["" if cell is None else str(cell) for cell in row] for row in rows]
    columns = zip(headers, zip(*cells, strict=True), strict=True)
    widths = [_BETWEEN + max(map(len, (*header.split("\n"), *column))) for header, column in columns]
    kept, width = list(range(len(headers))), text_width() + _BETWEEN
    if name is not None:
        least = min(widths[name], MIN_NAME + _BETWEEN)
        for last in reversed(range(1, len(headers))):
            if width < WIDTH and sum(widths[i] for i in kept) - widths[name] + least > width and last != name:
                kept.remove(last)
        room = max(MIN_NAME, width - sum(widths[i] for i in kept) + widths[name] - _BETWEEN)
        cells = [[shortened(cell, room) if i == name else cell for i, cell in enumerate(row)] for row in cells]
    # The headers are a row: tabulate makes columns wider than their headers, for which 80 columns have no room.
    text = tabulate(
        [[row[i] for i in kept] for row in (headers, *cells)],
        tablefmt="plain",
        colalign=["left" if i in left else "right" for i in kept],
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
            parts.append(indent + shortened(detail, text_width() - len(indent)))
    return "\n".join(parts)


def shortened(text: str, most: int) -> str:
    """Return ``text`` in one line of at most ``most`` characters, cut in the middle; unprintable ones become spaces."""
    if len(text) > most:
        end = (most - 1) // 3
        text = f"{text[: most - end - 1]}…{text[len(text) - end :]}"
    return "".join(c if c.isprintable() else " " for c in text)


def wrapped(text: str, first: str = "", rest: str = "") -> str:
    """Return ``text`` in lines of at most 80 characters, the first after ``first``, the others after ``rest``."""
    width = text_width()
    return textwrap.fill(
        text, width, initial_indent=first, subsequent_indent=rest, break_long_words=False, break_on_hyphens=False
    )
