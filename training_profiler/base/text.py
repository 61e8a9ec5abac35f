"""Text of the program, of files and of other processes, made fit for a terminal, a table and a metric name."""

from collections.abc import Mapping
from typing import Any, Final

PREFIX: Final = "Profiler: "  # of each line between reports
MAX_NAME_LENGTH: Final = 120  # characters; longer names would break tables
MOST_OF_ERROR: Final = 240  # characters of what an error of the program says
MAX_MESSAGE_LENGTH: Final = 1_000  # characters of a sentence that quotes a file


def printable(text: str, most: int = MAX_NAME_LENGTH) -> str:
    """Return ``text`` in one line of at most ``most`` characters.

    Controls, escape sequences, line breaks, invisible and bidirectional marks and lone surrogates are escaped.
    """
    if len(text) <= most and text.isprintable():
        return text
    shown = escaped(text[: most + 1])
    return shown if len(shown) <= most and len(text) <= most else shown[: most - 1] + "…"


def escaped(text: str) -> str:
    """Return ``text`` with non-printable characters escaped, at any length."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape", "replace").decode() for c in text)


def one_line(text: object) -> str:
    """Return a message in one line, fit for a terminal."""
    return printable(str(text), MAX_MESSAGE_LENGTH)


def printable_lines(text: str, has_color: bool = False) -> str:
    """Return a whole report fit for a terminal: its line breaks stay, and its colors where it has any."""
    if text.replace("\n", "").isprintable():
        return text
    import re  # not at the top: a program that is off prints nothing

    parts = re.split("(\x1b\\[[0-9;]*m)", text) if has_color else [text]  # the colors are at the odd places
    return "".join(part if i % 2 else "\n".join(map(escaped, part.split("\n"))) for i, part in enumerate(parts))


def encodable(text: str, encoding: str | None) -> str:
    """Return ``text`` as a stream of that encoding can write it."""
    encoding = encoding or "utf-8"
    return text.encode(encoding, "backslashreplace").decode(encoding)


def printable_data(value: Any) -> Any:
    """Return data for JSON with its texts escaped, and None for numbers that JSON does not have.

    It is as deep as our own documents, never as a file.
    """
    if isinstance(value, str):
        return escaped(value)
    if isinstance(value, float):
        return value if value - value == 0 else None  # NaN and infinity
    if isinstance(value, Mapping):
        return {escaped(key) if isinstance(key, str) else key: printable_data(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [printable_data(item) for item in value]
    return value
