"""What a rule about a trace is: a function beside its threshold, noted in one table."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from training_profiler.trace_analysis.analysis import Analysis

NS_PER_MS: Final = 1e6


@dataclass(frozen=True, slots=True)
class Recommendation:
    """One finding, the figures behind it, and what to do; ``worth_ms`` of all recorded steps, None where not known."""

    code: str
    finding: str
    evidence: Mapping[str, float | int | str]
    worth_ms: float | None
    remedy: str


Find = Callable[[Analysis, float], Recommendation | None]


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule and its threshold."""

    code: str
    threshold: float
    find: Find


RULES: Final[list[Rule]] = []


def rule(code: str, threshold: float) -> Callable[[Find], Find]:
    """Note a function as a rule."""

    def note(find: Find) -> Find:
        RULES.append(Rule(code, threshold, find))
        return find

    return note


def share_of_steps(found: Analysis, ns: int) -> float | None:
    """Return a time as a part of all steps; None without steps."""
    return ns / found.in_steps_ns if found.in_steps_ns else None


def gap_ns(found: Analysis, *causes: str) -> int:
    """Return the length of the gaps of these causes that begin within steps; of several devices the mean."""
    total = sum(place.gap.length_ns for place in found.gaps if place.gap.cause in causes and place.step)
    return total // max(1, len(found.devices))
