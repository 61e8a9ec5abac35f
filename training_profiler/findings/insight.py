"""One finding of a rule."""

from collections.abc import Mapping
from dataclasses import dataclass

Evidence = Mapping[str, float | int | str]


@dataclass(frozen=True, slots=True)
class Insight:
    """What a rule found, the measured figures behind it, what it is worth and what to do.

    ``worth_s`` is the part of this run's wall time that would be gone without the cost; 0 where it is not known, or
    for a remark that asks for no change. ``step_if_gone_s`` is what a step would take then, ``step_s`` what it takes;
    None for a cost that is no part of a step.
    """

    code: str
    finding: str
    evidence: Evidence
    worth_s: float
    remedy: str
    step_s: float | None = None
    step_if_gone_s: float | None = None
