"""Programs of a letter an event: "3f" and "3[dfbu]" repeat, and braces hold what happens inside of an event."""

from typing import Any

Events = list[tuple[str, Any]]  # a letter, and the events inside of it


def events_of(program: str) -> Events:
    """Return the events that the letters of a program stand for."""
    return _read(list(reversed(program)), "")


def _read(letters: list[str], end: str) -> Events:
    found: Events = []
    times = ""
    while letters and (letter := letters.pop()) != end:
        if letter.isdigit():
            times += letter
        elif letter == "{":
            found[-1] = (found[-1][0], _read(letters, "}"))
        elif letter != " ":
            found += (_read(letters, "]") if letter == "[" else [(letter, [])]) * int(times or 1)
            times = ""
    return found
