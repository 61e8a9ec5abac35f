"""Edits of the user's code: another argument of a call, or a statement beside it."""

from typing import NamedTuple

from training_profiler.snapshot.program import CallFacts


class Edit(NamedTuple):
    """What to change at one call of the user's code."""

    call: CallFacts
    arguments: tuple[tuple[str, str], ...] = ()  # keyword -> its value as source text
    statement: str = ""  # to insert before the call's; {model} is what an optimizer's parameters are taken from
    module: str = ""  # that the statement needs: "gc"
    note: str = ""  # what cannot be edited here, for the reader
