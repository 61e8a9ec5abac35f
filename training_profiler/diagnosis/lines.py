"""Rules that name lines of the user's code."""

from typing import Final

from training_profiler.diagnosis.registry import MIN_SAVING_S, RULES, has_enough_steps
from training_profiler.findings.finding import Evidence, Finding
from training_profiler.snapshot.snapshot import OTHER, LineStats, Snapshot
from training_profiler.units import seconds_text

SAMPLES_NEEDED: Final = 10  # of lines that wait; fewer may be chance
IDLE_AT_LEAST: Final = 0.1  # of the wait; a device that works on meanwhile is no worse off


@RULES.rule("waits-for-device", threshold=0.05)
def waits_for_device(snapshot: Snapshot, threshold: float) -> Finding | None:
    """Flag calls such as ``.item()`` in which Python waits for the device, for over 5 % of step time.

    Worth at most that, and no more than the device is idle: one that never is would be waited for elsewhere.
    """
    step = snapshot.step
    waiting = _waiting_lines(snapshot)
    if step is None or not has_enough_steps(snapshot) or not step.total_s or not waiting:
        return None
    waited_s = sum(line.waiting_share for line in waiting) * snapshot.wall_s
    idle_s = snapshot.idle_device_s()
    potential_saving_s = min(waited_s, step.settled_s, waited_s if idle_s is None else idle_s)
    share = waited_s / step.total_s
    samples = sum(line.samples for line in waiting)
    if (
        share <= threshold
        or potential_saving_s < max(MIN_SAVING_S, IDLE_AT_LEAST * waited_s)
        or samples < SAMPLES_NEEDED
    ):
        return None
    places = ", ".join(
        f"{line.file}:{line.line} {line.function} (.{line.waits_in}(), "
        f"{line.waiting_share * snapshot.wall_s / waited_s:.0%} of it)"
        for line in waiting[:3]
    )
    evidence: Evidence = {"share_of_step": share, "threshold": threshold, "seconds": waited_s, "lines": places}
    return Finding(
        code="waits-for-device",
        message=f"{share:.1%} of step time Python waits for the device "
        f"({seconds_text(waited_s / step.count)} a step): {places}",
        evidence=evidence,
        potential_saving_s=potential_saving_s,
        fix="keep the tensor (.detach()) and read it every n-th step: .item(), .cpu(), .tolist() and .numpy() "
        "return only when the device has done all that was asked of it before",
    )


@RULES.rule("unexplained", threshold=0.10)
def unexplained(snapshot: Snapshot, threshold: float) -> Finding | None:
    """Flag step time that no section covers, above 10 %; None below 10 steps.

    What is told as waiting for the device is explained.
    """
    other = snapshot.sections.get(OTHER)
    if other is None or snapshot.step is None or not has_enough_steps(snapshot) or not snapshot.step.settled_s:
        return None
    total_s = other.settled_total_s
    if waits_for_device(snapshot, snapshot.thresholds) is not None:
        total_s -= sum(line.waiting_share for line in snapshot.lines.get(OTHER, ())) * snapshot.wall_s
    idle_s = snapshot.idle_device_s()
    if idle_s is not None:  # a host that waits for a busy device makes no step longer
        total_s = min(total_s, idle_s)
    share = total_s / snapshot.step.settled_s
    has_sections = any(section.count for section in snapshot.sections.values())
    if share <= threshold or total_s < MIN_SAVING_S or not has_sections:
        return None
    per_step_s = total_s / snapshot.step.settled_count
    evidence: dict[str, float | int | str] = {
        "share_of_step": share,
        "threshold": threshold,
        "seconds": total_s,
    }
    message = f"{share:.1%} of step time lies in no section ({seconds_text(per_step_s)} a step)"
    fix = 'put profile_section("...") around the parts of the loop that have none yet'
    places = [
        f"{place.file}:{place.line} {place.function} ({place.share / other.share:.0%} of it)"
        for place in snapshot.hottest(OTHER)
    ]
    if places:
        evidence["lines"] = ", ".join(places)
        message += f": {evidence['lines']}"
        fix = 'make these lines cheaper, or put profile_section("...") around them to see them apart'
    return Finding("unexplained", message, evidence, potential_saving_s=total_s, fix=fix)


def _waiting_lines(snapshot: Snapshot) -> list[LineStats]:
    """Return the lines within steps that were seen waiting, the longest first."""
    lines = [
        line
        for name, of_section in snapshot.lines.items()
        if name == OTHER or snapshot.sections[name].step_total_s > 0
        for line in of_section
        if line.waiting_share > 0
    ]
    return sorted(lines, key=lambda line: -line.waiting_share)
