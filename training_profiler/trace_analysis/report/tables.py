"""What the views of a trace have in common: milliseconds, shares, names that fit, tables."""

import re
from collections.abc import Sequence
from typing import Final

from tabulate import tabulate

from training_profiler.units import BYTES_PER_MIB, bytes_text

NAME_WIDTH: Final = 60
NS_PER_MS: Final = 1e6
NS_PER_US: Final = 1e3
_SAYS_NOTHING: Final = re.compile(r"^void |at::native::|\(anonymous namespace\)::|at::detail::")


def ms(ns: float) -> str:
    """Return a time in ms, with its unit."""
    return f"{ns / NS_PER_MS:.3f} ms"


def us(ns: float) -> str:
    """Return a time in us, with its unit."""
    return f"{ns / NS_PER_US:.1f} us"


def percent(share: float | None) -> str:
    """Return a share of 0 to 1 in per cent; nothing where it is unknown."""
    return "" if share is None else f"{share:.1%}"


def amount(count: int | None) -> str:
    """Return an amount of bytes with its unit; nothing where they are unknown."""
    if count is None:
        return ""
    if abs(count) < 1024:
        return f"{count} B"
    return bytes_text(count) if abs(count) >= BYTES_PER_MIB / 10 else f"{count / 1024:.1f} KiB"


def counted(count: int, what: str) -> str:
    """Return a number of things: "1 gap", "2 gaps"."""
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


def short(name: str, width: int = NAME_WIDTH) -> str:
    """Return a name in one line of at most ``width`` characters; what cannot be printed becomes a space."""
    text = "".join(c if c.isprintable() else " " for c in name[: 2 * width])
    return text if len(name) <= width else text[: width - 1] + "…"


def kernel(name: str, width: int = NAME_WIDTH) -> str:
    """Return the name of a kernel, without what all of torch's have, so that what tells them apart is seen."""
    return short(_SAYS_NOTHING.sub("", name[: 20 * width]), width)


def table(headers: Sequence[str], rows: Sequence[Sequence[object]], left: int = 1) -> str:
    """Return a table, its first ``left`` columns to the left and the others to the right."""
    aligned = ["left"] * left + ["right"] * (len(headers) - left)
    return tabulate(rows, headers=headers, colalign=aligned, disable_numparse=True) if rows else "(nothing)"
