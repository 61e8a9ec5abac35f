"""One finding of a rule."""

from collections.abc import Mapping
from dataclasses import dataclass

Evidence = Mapping[str, float | int | str]


@dataclass(frozen=True, slots=True)
class Insight:
    """What a rule found, the measured figures behind it, what it is worth and what to do.

    ``worth_s`` is the part of this run's wall time that would be gone without the cost, 0 for a
    remark that asks for no change.
    """

    code: str
    finding: str
    evidence: Evidence
    worth_s: float
    remedy: str
