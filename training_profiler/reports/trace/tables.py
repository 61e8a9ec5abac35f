"""What the views of a trace have in common: milliseconds, shares, names that fit, tables."""

from collections.abc import Sequence
from typing import Final

from tabulate import tabulate

NAME_WIDTH: Final = 60
NS_PER_MS: Final = 1e6
NS_PER_US: Final = 1e3


def ms(ns: float) -> str:
    """Return a time in ms, with its unit."""
    return f"{ns / NS_PER_MS:.3f} ms"


def us(ns: float) -> str:
    """Return a time in us, with its unit."""
    return f"{ns / NS_PER_US:.1f} us"


def percent(share: float | None) -> str:
    """Return a share of 0 to 1 in per cent; nothing where it is unknown."""
    return "" if share is None else f"{share:.1%}"


def short(name: str, width: int = NAME_WIDTH) -> str:
    """Return a name in one line of at most ``width`` characters; what cannot be printed is written out."""
    text = "".join(c if c.isprintable() else " " for c in name)
    return text if len(text) <= width else text[: width - 1] + "…"


def table(headers: Sequence[str], rows: Sequence[Sequence[object]], left: int = 1) -> str:
    """Return a table, its first ``left`` columns to the left and the others to the right."""
    aligned = ["left"] * left + ["right"] * (len(headers) - left)
    return tabulate(rows, headers=headers, colalign=aligned, disable_numparse=True) if rows else "(nothing)"
