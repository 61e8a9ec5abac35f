"""Rules, and the registry that collects them. Runs have one registry, traces another."""

import difflib
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from types import MappingProxyType
from typing import Any, Final, Generic, TypeVar

from training_profiler.base.errors import SettingsError
from training_profiler.diagnosis.finding import Finding

Measured = TypeVar("Measured")  # input of the rules: a snapshot of a run, or an analysis of a trace
Find = Callable[[Measured, float], Finding | None]

DEFAULTS: Final[Mapping[str, float]] = MappingProxyType({})  # no threshold is overridden


class Saving(Enum):
    """What would be shorter without the cost that a rule finds."""

    STEPS = "every step"
    RUN = "the run, but not its steps"
    UNKNOWN = "not known"


@dataclass(frozen=True, slots=True)
class Need(Generic[Measured]):
    """What a measurement must have for a rule to say anything, in words."""

    what: str
    is_met: Callable[[Measured], bool]


@dataclass(frozen=True, slots=True)
class Rule(Generic[Measured]):
    """A row: a rule's code, its default threshold, and what finds it. A kind of measurement adds facts of its own."""

    code: str
    threshold: float
    finder: Find[Measured] | None = None  # a subclass may have a method ``find`` instead
    saving: Saving = Saving.STEPS
    needs: tuple[Need[Measured], ...] = ()

    def __call__(self, measured: Measured, thresholds: Mapping[str, float] = DEFAULTS) -> Finding | None:
        """Return the rule's finding; ``thresholds`` holds the overridden thresholds by code."""
        if self.missing(measured) is not None:
            return None
        return self.find(measured, thresholds.get(self.code, self.threshold))

    def find(self, measured: Measured, threshold: float) -> Finding | None:
        """Return the finding where the measurement exceeds ``threshold``."""
        assert self.finder is not None, f"{self.code} has no function"
        return self.finder(measured, threshold)

    def missing(self, measured: Measured) -> Need[Measured] | None:
        """Return the first need that is not met; None if the rule can run."""
        return next((need for need in self.needs if not need.is_met(measured)), None)


Row = TypeVar("Row", bound=Rule[Any])


class Registry(Generic[Measured, Row]):
    """The rules of one kind of measurement, in the order in which they were added."""

    def __init__(self, row: Callable[..., Row]) -> None:
        self._row = row
        self._rules: dict[str, Row] = {}

    def rule(self, code: str, threshold: float, **facts: Any) -> Callable[[Find[Measured]], Row]:
        """Return a decorator that makes a function a rule; ``facts`` are the other fields of its row."""
        return lambda find: self.add(self._row(code, threshold, find, **facts))

    def add(self, rule: Row) -> Row:
        """Add a rule and return it."""
        assert rule.code not in self._rules, f"two rules are called {rule.code}"
        self._rules[rule.code] = rule
        return rule

    def __iter__(self) -> Iterator[Row]:
        return iter(self._rules.values())

    def __getitem__(self, code: str) -> Row:
        return self._rules[code]

    def get(self, code: str) -> Row | None:
        """Return the row of a rule; None for an unknown code."""
        return self._rules.get(code)

    def thresholds(self) -> Mapping[str, float]:
        """Return the default threshold of every rule by its code."""
        return MappingProxyType({rule.code: rule.threshold for rule in self})

    def findings(self, measured: Measured, thresholds: Mapping[str, float] = DEFAULTS) -> list[Finding]:
        """Return the findings of all rules; ``thresholds`` holds the overridden thresholds by code."""
        return [finding for rule in self if (finding := rule(measured, thresholds)) is not None]

    def not_run(self, measured: Measured) -> dict[str, list[str]]:
        """Return the codes of the rules that cannot run, by what they need."""
        codes: dict[str, list[str]] = {}
        for rule in self:
            need = rule.missing(measured)
            if need is not None:
                codes.setdefault(need.what, []).append(rule.code)
        return codes


def read_thresholds(given: object, known: Collection[str], example: str) -> dict[str, float]:
    """Return the threshold of each rule that ``given`` names, a mapping or a text such as ``unexplained=0.15``.

    Raises:
        SettingsError: a rule is not in ``known``, or a threshold is not a number of at least 0.
    """
    if isinstance(given, Mapping):
        pairs = [(str(code), value) for code, value in given.items()]
    else:
        parts = [part.partition("=") for part in str(given).split(",") if part.strip()]
        pairs = [(code, value) for code, _, value in parts]
    thresholds = {}
    for code, value in pairs:
        code = code.strip()
        if code not in known:
            close = difflib.get_close_matches(code, known, n=1, cutoff=0.0)
            raise SettingsError(f"names {code!r}, which is not a rule; did you mean {close[0]}? {example}")
        try:
            number = float(str(value))
        except ValueError:
            number = -1.0
        if not 0 <= number < float("inf"):
            raise SettingsError(f"has {str(value)!r} for {code}, which is not a number >= 0; {example}")
        thresholds[code] = number
    return thresholds
