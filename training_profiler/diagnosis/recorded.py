"""The rule about a profiler of torch that records while the training goes on."""

from typing import Final

from training_profiler.diagnosis.registry import RULES, has_enough_steps
from training_profiler.findings.finding import Finding
from training_profiler.findings.registry import Saving
from training_profiler.snapshot.snapshot import Snapshot

PROFILER_RECORDS: Final = "profiler-records"
SAMPLES_NEEDED: Final = 5  # of the system monitor


@RULES.rule(PROFILER_RECORDS, threshold=0.5, saving=Saving.UNKNOWN)  # of the samples
def profiler_records(snapshot: Snapshot, threshold: float) -> Finding | None:
    """Flag a program whose own torch.profiler records for more than half of the time after the first steps.

    What it costs is not known: it is in every operator, and in what is done with the events at its end.
    """
    machine = snapshot.machine
    recorded = None if machine is None or machine.samples < SAMPLES_NEEDED else machine.recorded
    if recorded is None or recorded.mean <= threshold or not has_enough_steps(snapshot):
        return None
    share = recorded.mean
    return Finding(
        code=PROFILER_RECORDS,
        message=f"A profiler of torch that the program starts records {share:.0%} of the time, which makes each "
        "operator longer; all times below contain that",
        evidence={"share_of_samples": share, "threshold": threshold},
        potential_saving_s=0.0,
        fix="Record a few steps only: torch.profiler.profile(schedule=torch.profiler.schedule(wait=10, warmup=1, "
        "active=3, repeat=1)) with its step() after each training step; or train without torch.profiler, emit_nvtx and "
        "emit_itt",
    )
