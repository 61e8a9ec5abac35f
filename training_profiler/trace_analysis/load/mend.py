"""Makes JSON readable whose writer left JSON's rules, without guessing: what is left out is named."""

import re
from typing import Final

import msgspec

# A text without its end is one token up to the end of the file: none of its characters begins another.
_TOKEN: Final = re.compile(rb'"(?:[^"\\]|\\.)*+(?:"|\\?\Z)|-?\b(?:NaN|nan|Infinity|infinity|inf)\b', re.DOTALL)
_NO_NUMBER: Final = re.compile(rb"[:,\[\s]-?(NaN|nan|Inf|inf)")
# Halves of a surrogate pair without the other one, after an even number of backslashes.
_LONE_HALF: Final = re.compile(
    rb"(?<!\\)((?:\\\\)*)\\u(?:([dD][89abAB]..\\u[dD][c-fC-F]..)|[dD][89a-fA-F][0-9a-fA-F]{2})"
)
_BETWEEN: Final = re.compile(rb"\}\s*,\s*\{")
_TAIL: Final = 1 << 20  # bytes; the last whole event of a list begins within them
MOST_TRIES: Final = 20  # events inside an argument look like events of the list


def mend(text: bytes) -> tuple[bytes, str] | None:
    """Return JSON that can be decoded, and what was left out of it; None if it cannot be mended.

    Numbers that JSON does not have become null. A list of events may lack its end, as the format of Chrome allows; the
    list of an object may too if it ends after a whole event. Anything else that is cut off stays refused.
    """
    notes = []
    if _NO_NUMBER.search(text):
        text, count = _without_nan(text)
        if count:
            notes.append(f"{count} numbers that JSON does not have (NaN, Infinity) are unknown")
    if rb"\u" in text and not _is_json(text) and (whole := _without_halves(text)) != text:
        text = whole
        notes.append("halves of surrogate pairs in its texts are replaced")
    if not _is_json(text):
        closed = _closed(text)
        if closed is None:
            return None
        left_out = len(text.rstrip()) - closed[1]
        text = closed[0]
        notes.append(
            "its list of events has no end; it is read as far as it goes"
            + (f", without the last {left_out} bytes, a part of an event" if left_out > 1 else "")
        )
    return (text, "; ".join(notes)) if notes else None


def _without_nan(text: bytes) -> tuple[bytes, int]:
    count = 0

    def null(match: re.Match[bytes]) -> bytes:
        nonlocal count
        if match[0].startswith(b'"'):
            return match[0]
        count += 1
        return b"null"

    return _TOKEN.sub(null, text), count


def _without_halves(text: bytes) -> bytes:
    """Return JSON in which characters that are half of a pair are the replacement character."""
    return _LONE_HALF.sub(lambda match: match[0] if match[2] else match[1] + rb"\ufffd", text)


def _closed(text: bytes) -> tuple[bytes, int] | None:
    """Return JSON whose list of events is closed, and how many bytes of ``text`` it has."""
    if text.lstrip()[:1] != b"[":
        whole = text.rstrip().rstrip(b",")
        return (whole + b"]}", len(whole)) if _ends_whole(text) and _is_json(whole + b"]}") else None
    ends = [match.start() for match in _BETWEEN.finditer(text, max(0, len(text) - _TAIL))][-MOST_TRIES:]
    if _ends_whole(text):
        ends.append(text.rindex(b"}"))
    for end in reversed(ends):
        if _is_json(text[: end + 1] + b"]"):
            return text[: end + 1] + b"]", end + 1
    return None


def _ends_whole(text: bytes) -> bool:
    """Return whether an event ends at the end, or its comma."""
    return text[-_TAIL:].rstrip().removesuffix(b",").rstrip().endswith(b"}")


def _is_json(text: bytes) -> bool:
    try:
        msgspec.json.decode(text, type=msgspec.Raw)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return False
    return True
