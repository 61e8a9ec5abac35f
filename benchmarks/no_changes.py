"""Changes that do nothing: what a session of trials says of them is noise. Trials import this module by its name."""

from collections.abc import Iterable

from training_profiler.diagnosis.finding import Losses
from training_profiler.trials.treatment import Treatment, TrialFacts

TREATMENTS = tuple(Treatment(f"nothing {number}", "nothing", Losses.EXACT, "") for number in range(4))
EXCLUSIVE = ()


def suggested(findings: Iterable[object], facts: TrialFacts) -> list[Treatment]:
    """Return all of them."""
    return list(TREATMENTS)
