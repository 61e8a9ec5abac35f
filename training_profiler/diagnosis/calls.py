"""Names the call whose argument a finding's fix is about: its line in the user's code, and the arguments it has now."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from training_profiler.diagnosis.loader_fixes import slowest_loader
from training_profiler.findings.finding import Finding
from training_profiler.snapshot.program import COMPILE, LOADER, OPTIMIZER, CallFacts
from training_profiler.snapshot.snapshot import LoaderStats, Snapshot
from training_profiler.tables.sections import DATA_LOADING, FIRST_FETCH, WORKER_START

# The rule -> the kind of call whose arguments its fix is about.
CALL_OF: Final = {
    "data-loading-bound": LOADER,
    "data-transfer": LOADER,
    "first-batch-slow": LOADER,
    "workers-restarted": LOADER,
    "loader-restarted": LOADER,
    "loader-slow": LOADER,
    "optimizer-heavy": OPTIMIZER,
    "recompiles": COMPILE,
}
LOADS: Final = (DATA_LOADING, FIRST_FETCH, WORKER_START)  # sections whose fix is an argument of the loader


def with_call(finding: Finding, snapshot: Snapshot) -> Finding:
    """Return the finding; its fix ends with the call that has to change, if exactly one call is meant."""
    calls = list(_calls(finding, snapshot))
    if len(calls) != 1 or not finding.fix:
        return finding
    text = calls[0].text
    return replace(finding, fix=f"{finding.fix} ({text})", evidence={**finding.evidence, "call": text})


def _calls(finding: Finding, snapshot: Snapshot) -> Iterator[CallFacts]:
    kind = CALL_OF.get(finding.code)
    if finding.code == "step-time-varies" and finding.evidence.get("moves_with") in LOADS:
        kind = LOADER
    loader = _loader(finding, snapshot) if kind == LOADER else None
    for call in snapshot.program.calls:
        if call.kind != kind:
            continue
        if loader is not None and loader.made_at and call.site.place != loader.made_at:
            continue
        if kind == OPTIMIZER and not _is_main_optimizer(call, snapshot):
            continue
        yield call


def _loader(finding: Finding, snapshot: Snapshot) -> LoaderStats | None:
    named = [loader for loader in snapshot.loaders if loader.name == finding.evidence.get("loader")]
    return named[0] if named else slowest_loader(snapshot)


def _is_main_optimizer(call: CallFacts, snapshot: Snapshot) -> bool:
    """Return whether the call made the optimizer with the most parameters, as far as its class shows."""
    facts = snapshot.program.optimizer
    return facts is not None and call.function == facts.name
