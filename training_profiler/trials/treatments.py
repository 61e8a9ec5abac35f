"""The table of all treatments, and which of them are worth trying on a program."""

from collections.abc import Iterable
from typing import Final

from training_profiler.diagnosis.registry import row_of
from training_profiler.diagnosis.rules import COMPUTES_SLOWLY, HEALTHY
from training_profiler.findings.finding import Finding, Losses
from training_profiler.snapshot.snapshot import Snapshot
from training_profiler.trials import loader_treatments, program_treatments
from training_profiler.trials.treatment import Edit, Treatment, TrialFacts, facts_of

TREATMENTS: Final = (*loader_treatments.TREATMENTS, *program_treatments.TREATMENTS)
# Only one of these can be in effect.
EXCLUSIVE: Final = (("fused", "foreach"), ("jemalloc", "tcmalloc"))
FAMILIES: Final = tuple(dict.fromkeys(treatment.family for treatment in TREATMENTS))

_ANY: Final = ("fused", "num_threads", "gc_freeze", "compile", "channels_last")
_SAFEST_FIRST: Final = tuple(Losses)


def worth_trying(finding: Finding) -> tuple[str, ...]:
    """Return the families of what may help against a finding."""
    return _ANY if finding.code in (HEALTHY, COMPUTES_SLOWLY) else row_of(finding).try_


def edits_of(names: Iterable[str], snapshot: Snapshot) -> list[Edit]:
    """Return the edits of the changes, or kinds of changes, of these names for the program of a run."""
    calls, wanted = facts_of(snapshot).calls, set(names)
    return [edit for each in TREATMENTS if {each.name, each.family} & wanted for edit in each.edit(calls)]


def suggested(findings: Iterable[Finding], facts: TrialFacts) -> list[Treatment]:
    """Return the treatments worth trying where a run had these findings: those that apply, the safest first.

    Ceilings come last, and after them the families of which none applies, to be named with the reason. Findings that
    no change is known for, such as a busy machine, leave those that may help any program.
    """
    families = {family for finding in findings for family in worth_trying(finding)} or set(_ANY)
    worth = [each for each in TREATMENTS if each.family in families]
    chosen = [each for each in worth if each.reason_not(facts) is None]
    applying = {each.family for each in chosen}
    chosen.sort(key=lambda each: (each.ceiling, _SAFEST_FIRST.index(each.losses)))
    return [*chosen, *(each for each in worth if each.family not in applying)]
