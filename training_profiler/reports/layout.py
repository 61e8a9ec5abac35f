"""How a report is laid out: width, color, characters, and the two libraries that draw."""

import re
import sys
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

# Imported now and hidden again. Now: an import at the interpreter's end makes Python forget that Ctrl-C ended the
# program. Hidden: torch imports tabulate at the program's end and must find it as it would without us.
_imported_before = [name for name in ("tabulate", "termcolor") if name in sys.modules]
try:
    from tabulate import tabulate
except ImportError:  # the program has a tabulate.py of its own beside it
    tabulate = None  # type: ignore[assignment]
try:
    from termcolor import can_colorize, colored
except ImportError:  # not installed, or the program has a termcolor.py of its own
    can_colorize = colored = None  # type: ignore[assignment]
for _name in {"tabulate", "termcolor"} - set(_imported_before):
    sys.modules.pop(_name, None)

TABLE, LINES = "table", "lines"
WIDTH: Final = 80  # of files, pipes, and terminals that do not know their own
MIN_WIDTH: Final = 40
# The spaces in "7.58 ms", "20 min 49 s", "2 h 05 min", "59.7 MFLOP/s" and "4.18 steps/s", and in "In [2]:5".
_KEEPS_TOGETHER: Final = re.compile(
    r"(?<=\d) (?=(?:us|ms|s|min|h|MiB|GiB|\w+/s)\b)|(?<= min) (?=\d\d s\b)|(?<= h) (?=\d\d min\b)|(?<=\bIn) (?=\[\d)"
)
KEPT: Final = "\0"  # stands for such a space; names in reports have no control characters


@dataclass(frozen=True, slots=True)
class Layout:
    """The form of a report; by default that of a file."""

    width: int = WIDTH
    """Columns. No line is longer, except where it holds a path or a name that is."""
    has_color: bool = False
    is_unicode: bool = False
    """Whether bars are drawn in block characters; else in ``#``."""
    format: str = TABLE
    """Tables, or lines to grep. The latter are never wrapped."""

    @property
    def is_lines(self) -> bool:
        """Whether each section is one line to grep."""
        return self.format == LINES

    def color(self, text: str, color: str, is_bold: bool = False) -> str:
        """Return ``text`` in a color where the terminal has any."""
        if not self.has_color or colored is None:
            return text
        return colored(text, color, attrs=["bold"] if is_bold else None, force_color=True)

    def wrap(self, text: str, first: str = "", rest: str = "  ") -> list[str]:
        """Return ``text`` in lines of the layout's width, the first after ``first``, the others after ``rest``.

        No line ends between a number and its unit, or within the place of a notebook's cell.
        """
        if self.is_lines:
            return [first + text.replace(KEPT, " ")]
        lines = textwrap.wrap(
            _KEEPS_TOGETHER.sub(KEPT, text),
            max(self.width, MIN_WIDTH),
            initial_indent=first,
            subsequent_indent=rest,
            break_long_words=False,
            break_on_hyphens=False,
        )
        return [line.replace(KEPT, " ") for line in lines] or [first.rstrip()]


def has_terminal_color() -> bool:
    """Return whether standard output shows colors: by NO_COLOR, FORCE_COLOR, TERM, and whether it is a terminal."""
    if can_colorize is None:
        return False
    can_colorize.cache_clear()  # sys.stdout may have been replaced since
    return can_colorize()


def table(headers: Sequence[str], rows: Sequence[Sequence[str]], left: Sequence[int] = (0,)) -> list[str]:
    """Return the lines of a table; columns whose numbers are in ``left`` are left-aligned, all others right-aligned."""
    if tabulate is None:
        return ["  ".join(cell.replace("\n", " ") for cell in row).rstrip() for row in (headers, *rows)]
    # The headers are a row: tabulate makes columns wider than their headers, for which 80 columns have no room.
    text = tabulate(
        [headers, *rows],
        tablefmt="plain",
        colalign=["left" if column in left else "right" for column in range(len(headers))],
        disable_numparse=True,
        preserve_whitespace=True,
    )
    return [line.rstrip() for line in text.split("\n")]


def column_width(header: str, cells: Sequence[str]) -> int:
    """Return the width that a column of ``table`` takes, with the space left of it."""
    return 2 + max(map(len, (*header.split("\n"), *cells)))


def fitting(
    headers: Sequence[str], rows: Sequence[Sequence[str]], width: int, drop: Iterable[int], least: int = WIDTH
) -> list[int]:
    """Return the columns of a table that fit ``width``: those of ``drop`` go first. Names may shrink to ``least``."""
    widths = [column_width(header, [row[at] for row in rows]) for at, header in enumerate(headers)]
    widths[0] = min(widths[0], 2 + least)
    kept = list(range(len(headers)))
    for column in drop:
        if sum(widths[at] for at in kept) - 2 <= width:
            break
        kept.remove(column)
    return kept


def shortened(name: str, most: int) -> str:
    """Return a name of at most ``most`` characters; a longer one keeps its begin and its end, which identifies it."""
    most = max(most, 5)
    if len(name) <= most:
        return name
    kept = (most - 2) // 2
    return f"{name[: most - kept - 2]}..{name[-kept:]}"


def sentence(text: str) -> str:
    """Return a text with a capital at its begin; ``capitalize`` would change the rest."""
    return text[:1].upper() + text[1:]
