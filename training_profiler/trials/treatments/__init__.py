"""The table of all treatments, and which of them are worth trying on a program."""

from collections.abc import Iterable
from typing import Final

from training_profiler.findings.finding import Finding
from training_profiler.trials.facts import ProgramFacts
from training_profiler.trials.treatment import Treatment

TREATMENTS: Final[tuple[Treatment, ...]] = ()


def suggested(findings: Iterable[Finding], facts: ProgramFacts) -> list[Treatment]:
    """Return the treatments worth trying where a run had these findings: those that apply, safe ones first."""
    return [treatment for treatment in TREATMENTS if treatment.reason_not(facts) is None]
