"""Edits of the user's code: another argument of a call, or a statement beside it."""

from typing import NamedTuple


class Edit(NamedTuple):
    """One place of the user's code to change."""

    path: str  # of the file
    line: int  # of the call
    column: int  # of the call, in bytes of UTF-8; -1 if unknown
    arguments: tuple[tuple[str, str], ...] = ()  # keyword -> its value as source text
    statement: str = ""  # to insert, with {target} for the name that the call's result is assigned to
    is_before: bool = False  # whether the statement goes before the statement of the call, not after it
