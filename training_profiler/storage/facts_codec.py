"""Records read from a file, made fit for a report: numbers within bounds, and texts for a terminal."""

from collections.abc import Mapping
from typing import Any, Final, TypeVar

from training_profiler.base.text import printable
from training_profiler.snapshot.program import CallFacts, ProgramFacts, UnusedGradients, UnusedGraphs
from training_profiler.storage.limits import MOST_SUM

T = TypeVar("T")
MOST_ITEMS: Final = 10_000  # of any list
MOST_CALLS: Final = 32  # and arguments, data types, devices
_PARTS: Final = frozenset({"used", "part", "passed_on", "loop"})  # fields of facts that are 0 to 1


def fit(record: T, most_items: int = MOST_ITEMS) -> T:
    """Return a record of named tuples, dataclasses and lists with each number between 0 and 2^62, and texts escaped.

    Lists are cut.
    """
    value: Any = record
    if isinstance(value, str):
        value = printable(value)
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        value = type(value)(min(MOST_SUM, max(0, value)))
    elif isinstance(value, Mapping):
        value = {fit(key): fit(each, most_items) for key, each in list(value.items())[:most_items]}
    elif hasattr(value, "_fields"):
        value = value._make(fit(each, most_items) for each in value)
    elif isinstance(value, (list, tuple)):
        value = type(value)(fit(each, most_items) for each in value[:most_items])
    elif hasattr(value, "__dataclass_fields__"):
        value = type(value)(**{name: fit(getattr(value, name), most_items) for name in value.__dataclass_fields__})
    return value  # type: ignore[no-any-return]


def checked_facts(facts: ProgramFacts) -> ProgramFacts:
    """Return the program's facts, read from a journal."""
    parts = {name: _parts(value) for name, value in fit(facts, MOST_CALLS)._asdict().items()}
    return ProgramFacts(**{**parts, "calls": tuple(map(_call, facts.calls[:MOST_CALLS]))})


def _call(call: CallFacts) -> CallFacts:
    column = max(-1, min(MOST_SUM, call.site.column))  # -1 is unknown
    fitted = fit(call, MOST_CALLS)
    return fitted._replace(site=fitted.site._replace(column=column))


def _parts(facts: Any) -> Any:
    """Return facts whose parts are no more than the whole."""
    names = _PARTS.intersection(getattr(facts, "_fields", ()))
    facts = facts._replace(**{name: min(1.0, getattr(facts, name)) for name in names}) if names else facts
    if isinstance(facts, UnusedGradients):
        return facts._replace(numbers=min(facts.numbers, facts.of), passed_on=min(facts.part, facts.passed_on))
    if isinstance(facts, UnusedGraphs):
        of = max(1, facts.of)
        return facts._replace(steps=max(1, facts.steps), calls=min(max(1, facts.calls), of), of=of)
    return facts
