"""The rule about samplers, which choose the samples of a batch in the training process itself."""

from typing import Final

from training_profiler.base.units import ms_text
from training_profiler.diagnosis.loaders import loader_restarted
from training_profiler.diagnosis.registry import MIN_SAVING_S, RULES, has_enough_steps
from training_profiler.findings.finding import Finding
from training_profiler.snapshot.snapshot import Snapshot
from training_profiler.tables.framework_frames import SAMPLER
from training_profiler.tables.sections import DATA_LOADING, FIRST_FETCH, WORKER_START

SAMPLER_SLOW: Final = "sampler-slow"
SAMPLES_NEEDED: Final = 10  # of lines in a sampler; fewer may be chance
_FETCHING: Final = (DATA_LOADING, FIRST_FETCH, WORKER_START)  # sections in which a loader asks its sampler


@RULES.rule(SAMPLER_SLOW, threshold=0.05)  # of step time
def sampler_slow(snapshot: Snapshot, threshold: float) -> Finding | None:
    """Flag a sampler or batch sampler that takes over 5 % of step time; None below 10 samples of its lines."""
    step = snapshot.step
    lines = [line for name in _FETCHING for line in snapshot.lines.get(name, ()) if line.phase == SAMPLER]
    if step is None or not has_enough_steps(snapshot) or not step.total_s or not lines:
        return None
    if loader_restarted(snapshot, snapshot.thresholds) is not None:  # the cause
        return None
    if sum(line.samples for line in lines) < SAMPLES_NEEDED:
        return None
    spent_s = sum(line.share for line in lines) * snapshot.wall_s
    share = min(1.0, spent_s / step.total_s)
    potential_saving_s = share * step.settled_s
    if share <= threshold or potential_saving_s < MIN_SAVING_S:
        return None
    hottest = max(lines, key=lambda line: line.share)
    part = hottest.share / sum(line.share for line in lines)
    place = f"{hottest.place} {hottest.what} ({part:.0%} of it)"
    return Finding(
        code=SAMPLER_SLOW,
        message=f"The sampler of a data loader takes {share:.1%} of step time ({ms_text(spent_s / step.count)} per "
        f"step) to choose samples, above all in {place}",
        evidence={"share_of_step": share, "threshold": threshold, "seconds": spent_s, "lines": place},
        potential_saving_s=potential_saving_s,
        fix="Compute the order once, ahead of time, or with torch or NumPy: the sampler runs in the training process, "
        "so DataLoader workers cannot take it over",
    )
