"""The verdict on a run: one line, from the first finding that matters or from the lack of any."""

from collections.abc import Sequence
from typing import Final, NamedTuple

from training_profiler.base.units import duration_text
from training_profiler.diagnosis import Finding
from training_profiler.diagnosis.device import GPU_UTILIZATION, SAMPLES_NEEDED, SHARED_GPU
from training_profiler.diagnosis.machine import MACHINE_BUSY
from training_profiler.diagnosis.registry import row_of, threshold_of
from training_profiler.diagnosis.rules import COMPUTES_SLOWLY, too_little_data
from training_profiler.findings.finding import brief
from training_profiler.reports.findings import has_nothing_to_fix, important
from training_profiler.snapshot.snapshot import Snapshot
from training_profiler.tables.sections import (
    BACKWARD_PASS,
    FORWARD_PASS,
    FORWARD_WITHOUT_GRAD,
    GRAPH_REPLAY,
    OPTIMIZER_STEP,
)

COMPUTES_FROM: Final = 0.80  # of step time in the three parts below: then the model itself is the cost
BUSY_MFU: Final = 0.30  # of the peak: few trainings that leave their device idle for long reach it
SHOWN_FROM: Final = 0.05  # of step time: parts that not every training has
MOST_OF_IT: Final = 0.5
COMPUTING: Final = (FORWARD_PASS, BACKWARD_PASS, OPTIMIZER_STEP)
REPLAYS: Final = "graph replays"
_ALSO_COMPUTING: Final = {GRAPH_REPLAY: REPLAYS, FORWARD_WITHOUT_GRAD: "no-grad forward"}
BAD, GOOD, UNKNOWN = "red", "green", "yellow"


class Verdict(NamedTuple):
    """What limits the run, what that is based on, and what a change could save; unknown texts are empty."""

    headline: str
    detail: str
    saving: str
    color: str


def verdict(snapshot: Snapshot, findings: Sequence[Finding]) -> Verdict:
    """Return the verdict that the findings and figures support."""
    first = next(iter(important(snapshot, findings)), None)
    if first is not None:
        headline = f"{row_of(first).label or first.code.replace('-', ' ').upper()}: {brief(first.message)}"
        if first.code == MACHINE_BUSY:
            return Verdict(headline, "", f"{_lost(snapshot, first)}; the times below contain that", BAD)
        saving = _saving(snapshot, first)
        if first.code == SHARED_GPU:
            saving += "; the times below contain the waiting"
        return Verdict(headline, "", saving, BAD)
    if not snapshot.steps:
        return Verdict("no training step was recorded", "", "", UNKNOWN)
    missing = too_little_data(snapshot)
    if missing is not None:
        return Verdict("too few steps to judge", missing, "", UNKNOWN)
    return _no_bottleneck(snapshot, findings)


def _no_bottleneck(snapshot: Snapshot, findings: Sequence[Finding]) -> Verdict:
    shares = [share for name in COMPUTING if (share := snapshot.share_of_step(name)) is not None]
    others = {text: snapshot.share_of_step(name) or 0.0 for name, text in _ALSO_COMPUTING.items()}
    computing = min(1.0, sum(shares) + sum(others.values()))
    small = any(finding.fix and not has_nothing_to_fix(finding) for finding in findings)
    headline = "no large bottleneck found" if small else "no bottleneck found"
    is_busy = _is_busy(snapshot)
    if computing >= COMPUTES_FROM and is_busy:
        headline = f"COMPUTE-BOUND, {headline}"
    slowly = next((finding for finding in findings if finding.code == COMPUTES_SLOWLY), None)
    if slowly is not None:
        return Verdict("no single bottleneck found", slowly.message.partition(", but ")[2], "", UNKNOWN)
    parts = [text for text, share in others.items() if share >= SHOWN_FROM]
    parts += ["forward, backward and optimizer"] if shares else []
    details = [f"{computing:.0%} of step time is {', '.join(parts)}"] if shares or others[REPLAYS] >= SHOWN_FROM else []
    outside_s = snapshot.wall_s - (0.0 if snapshot.step is None else snapshot.step.total_s)
    if outside_s > MOST_OF_IT * snapshot.wall_s:
        details.append(f"{outside_s / snapshot.wall_s:.0%} of this run is outside training steps")
    if is_busy is None:
        details.append("how busy the device was is not known")
    return Verdict(headline, "; ".join(details), "", UNKNOWN if is_busy is None else GOOD)


def _is_busy(snapshot: Snapshot) -> bool | None:
    """Return whether what computes is busy in steps; None if unknown.

    A host that queues work for a device spends the same time in the same sections, whether the device is busy or idle.
    """
    optimizer, machine, rates = snapshot.program.optimizer, snapshot.machine, snapshot.throughput
    if snapshot.device is None and (optimizer is None or set(optimizer.devices) <= {"cpu"}):
        return True
    if rates is not None and rates.mfu is not None and rates.mfu >= BUSY_MFU:
        return True
    if machine is None or machine.samples < SAMPLES_NEEDED or machine.least_busy is None:
        return None
    return machine.least_busy[0] >= threshold_of(GPU_UTILIZATION, snapshot)


def _lost(snapshot: Snapshot, finding: Finding) -> str:
    return f"That cost {duration_text(finding.potential_saving_s)}{_of_run(snapshot, finding)}"


def _of_run(snapshot: Snapshot, finding: Finding) -> str:
    return f" ({finding.potential_saving_s / snapshot.wall_s:.0%} of this run)" if snapshot.wall_s else ""


def _saving(snapshot: Snapshot, finding: Finding) -> str:
    if not finding.potential_saving_s:
        return ""
    return f"Fixing it could save up to {duration_text(finding.potential_saving_s)}{_of_run(snapshot, finding)}"
