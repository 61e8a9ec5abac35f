"""Rules, and the registry that collects them. Runs have one registry, traces another."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from types import MappingProxyType
from typing import Final, Generic, TypeVar

from training_profiler.findings.finding import Finding

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
    """A function that returns a finding or None, with its default threshold."""

    code: str
    threshold: float
    find: Find[Measured]
    saving: Saving = Saving.STEPS
    needs: tuple[Need[Measured], ...] = ()

    def __call__(self, measured: Measured, thresholds: Mapping[str, float] = DEFAULTS) -> Finding | None:
        """Return the rule's finding; ``thresholds`` holds the overridden thresholds by code."""
        if self.missing(measured) is not None:
            return None
        return self.find(measured, thresholds.get(self.code, self.threshold))

    def missing(self, measured: Measured) -> Need[Measured] | None:
        """Return the first need that is not met; None if the rule can run."""
        return next((need for need in self.needs if not need.is_met(measured)), None)


class Registry(Generic[Measured]):
    """The rules of one kind of measurement, in the order in which they were added."""

    def __init__(self) -> None:
        self._rules: dict[str, Rule[Measured]] = {}

    def rule(
        self,
        code: str,
        threshold: float,
        saving: Saving = Saving.STEPS,
        needs: tuple[Need[Measured], ...] = (),
    ) -> Callable[[Find[Measured]], Rule[Measured]]:
        """Return a decorator that makes a function a rule of this registry."""

        def register(find: Find[Measured]) -> Rule[Measured]:
            return self.add(Rule(code, threshold, find, saving, needs))

        return register

    def add(self, rule: Rule[Measured]) -> Rule[Measured]:
        """Add a rule and return it."""
        assert rule.code not in self._rules, f"two rules are called {rule.code}"
        self._rules[rule.code] = rule
        return rule

    def __iter__(self) -> Iterator[Rule[Measured]]:
        return iter(self._rules.values())

    def __getitem__(self, code: str) -> Rule[Measured]:
        return self._rules[code]

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
