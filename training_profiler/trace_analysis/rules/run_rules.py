"""What to change, from one trace."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from training_profiler.trace_analysis.analysis import Analysis
from training_profiler.trace_analysis.rules import balance, device, host
from training_profiler.trace_analysis.rules.rule import RULES, Recommendation

MODULES: Final = (host, device, balance)  # importing them notes their rules in RULES


THRESHOLDS: Final[Mapping[str, float]] = MappingProxyType({rule.code: rule.threshold for rule in RULES})


def recommendations(found: Analysis, thresholds: Mapping[str, float] = THRESHOLDS) -> list[Recommendation]:
    """Return what is worth changing, the most valuable first; what has no known worth comes last.

    Args:
        found: the trace.
        thresholds: of rules by their code, where they shall differ.
    """
    told = [one for rule in RULES if (one := rule.find(found, thresholds.get(rule.code, rule.threshold))) is not None]
    return sorted(told, key=lambda one: -1.0 if one.worth_ms is None else -one.worth_ms)
