"""What a run comes to: findings with saving and fix, the verdict in one line, and a checklist of usual targets."""

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from training_profiler.base.sections import (
    BACKWARD_PASS,
    DATA_GENERATION,
    DATA_LOADING,
    DATA_TRANSFER,
    FORWARD_PASS,
    FORWARD_WITHOUT_GRAD,
    GRAPH_REPLAY,
    OPTIMIZER_STEP,
    name_of,
)
from training_profiler.base.units import counted, duration_text, ms_number, of_training
from training_profiler.diagnosis.device import GPU_UTILIZATION, SAMPLES_NEEDED, SHARED_GPU, fullest
from training_profiler.diagnosis.finding import FAIL, PASS, UNKNOWN, Check, Finding, brief, check, check_lines
from training_profiler.diagnosis.lines import IN_WORKERS, MORE_STEPS, UNKNOWN_S
from training_profiler.diagnosis.machine import MACHINE_BUSY, THE_MACHINE
from training_profiler.diagnosis.registry import part_in_training, row_of, section_of, threshold_of
from training_profiler.diagnosis.rules import COMPUTES_SLOWLY, HEALTHY, too_little_data
from training_profiler.model.snapshot import LineStats, Snapshot
from training_profiler.reports.layout import Layout

OF_CRASHES: Final = ("Error", "Exception")  # an end that the user did not ask for
MOST_IMPORTANT: Final = 3  # as many changes as a reader makes before the next run
MATTERS_FROM: Final = 0.05  # of the run's wall time, or of the time in steps
UNEVEN_MATTERS_FROM: Final = 0.10
# Steps that are uneven in no part, or in computing, as on any machine that others use as well.
_BY_CHANCE: Final = (None, THE_MACHINE, FORWARD_PASS, BACKWARD_PASS, OPTIMIZER_STEP, GRAPH_REPLAY)
REMARKS: Final = ("slowest-component", "data-loading-efficient")  # true of every run


def important(snapshot: Snapshot, findings: Iterable[Finding]) -> list[Finding]:
    """Return the one to three findings to act on, in their order; none where nothing is worth a change."""
    late_rank = any(row_of(finding).is_of_other_rank for finding in findings)
    return [
        finding
        for at, finding in enumerate(findings)
        if finding.fix
        and _matters(snapshot, finding)
        and (finding.code != MACHINE_BUSY or at == 0)
        and not (late_rank and "waits_for" in finding.evidence)  # which only says that the late rank comes first
    ][:MOST_IMPORTANT]


def has_nothing_to_fix(finding: Finding) -> bool:
    """Return whether a finding only describes the run."""
    return row_of(finding).is_harmless or finding.code in (*REMARKS, HEALTHY)


def _matters(snapshot: Snapshot, finding: Finding) -> bool:
    if has_nothing_to_fix(finding):
        return False
    if row_of(finding).is_risk:
        return True
    saving_s = finding.potential_saving_s or float(finding.evidence.get(UNKNOWN_S, 0.0))
    by_chance = finding.code == "step-time-varies" and finding.evidence.get("moves_with") in _BY_CHANCE
    least = UNEVEN_MATTERS_FROM if by_chance else MATTERS_FROM
    of_steps = snapshot.step is not None and saving_s >= least * snapshot.step.total_s
    return saving_s > 0 and (saving_s >= least * snapshot.wall_s or of_steps)


def source_line(snapshot: Snapshot, finding: Finding) -> tuple[LineStats, float] | None:
    """Return the line of the user's code with most of a finding's time, and its share of that; None if unknown."""
    name = section_of(finding)
    section = None if name is None else snapshot.sections.get(name)
    if name is None or section is None or not section.share:
        return None
    if IN_WORKERS in finding.evidence or finding.evidence.get("lines"):  # it names lines of its own
        return None
    hottest = snapshot.hottest(name, of_steps=True)
    if not hottest or hottest[0].place in finding.message:
        return None
    return hottest[0], min(1.0, hottest[0].share / section.share)


def insight_lines(snapshot: Snapshot, findings: Sequence[Finding], layout: Layout) -> list[str]:
    """Return every finding with its saving and its fix, then the data that further rules lacked.

    A fix that several findings have is written once.
    """
    lines, advised = [], dict[str, str]()
    has_better = any(finding.fix for finding in findings)
    for finding in findings:
        if has_better and finding.code in REMARKS:
            continue
        saving = f" [could save {saving_text(snapshot, finding)}]" if finding.potential_saving_s else ""
        fix = f" -> {finding.advice}" if finding.fix else ""
        if finding.advice in advised:
            fix = f" -> The same change as for: {advised[finding.advice]}"
        elif fix:
            advised[finding.advice] = brief(finding.message)
        lines += layout.wrap(f"{finding.message}{saving}{fix}", first="- ")
    reason = too_little_data(snapshot)
    return lines + (layout.wrap(reason, first="- ") if reason else [])


def saving_text(snapshot: Snapshot, finding: Finding) -> str:
    """Return what a change could save: time, share of the training time, and the step before and after it."""
    text, share = duration_text(finding.potential_saving_s), saved_share(snapshot, finding)
    if share is not None:
        low, high = (round(100 * seconds / snapshot.training_s) for seconds in finding.saving_range_s or (0.0, 0.0))
        likely = f", likely {low} to {high}%" if high > low else ""  # not where it is narrower than the rounding
        text += f" ({share:.1%}{likely})"
    if finding.step_s is not None and finding.step_if_fixed_s is not None:
        text += f": {ms_number(finding.step_s)} -> {ms_number(finding.step_if_fixed_s)} ms/step"
    cost = snapshot.cost_text(finding.potential_saving_s)
    return f"{text}, {cost}" if cost else text


def saved_share(snapshot: Snapshot, finding: Finding, part: float = 1.0) -> float | None:
    """Return the part of the training time that a change saves, 0 to 1; None where it saves time before or after it."""
    whole_s = snapshot.wall_s if finding.code == MACHINE_BUSY else snapshot.training_s  # it is of the start as well
    whole_s -= 0.0 if snapshot.step is None else snapshot.step.inspected_s
    if row_of(finding).is_before_training or whole_s <= 0 or not part_in_training(finding, snapshot):
        return None
    return min(1.0, part * finding.potential_saving_s / whole_s)


COMPUTES_FROM: Final = 0.80  # of step time in the three parts below: then the model itself is the cost
BUSY_MFU: Final = 0.30  # of the peak: few trainings that leave their device idle for long reach it
SHOWN_FROM: Final = 0.05  # of step time: parts that not every training has
MOST_OF_IT: Final = 0.5
COMPUTING: Final = (FORWARD_PASS, BACKWARD_PASS, OPTIMIZER_STEP)
REPLAYS: Final = "graph replays"
_ALSO_COMPUTING: Final = {GRAPH_REPLAY: REPLAYS, FORWARD_WITHOUT_GRAD: "no-grad forward"}
BAD, GOOD, UNCLEAR = "red", "green", "yellow"


class Verdict(NamedTuple):
    """What limits the run, what that is based on, and what a change could save; unknown texts are empty."""

    headline: str
    detail: str
    saving: str
    color: str


def verdict(snapshot: Snapshot, findings: Sequence[Finding]) -> Verdict:
    """Return the verdict that the findings and figures support."""
    first = next(iter(important(snapshot, findings)), None)
    idle_s = snapshot.after_training_s  # a training that hangs is ended from outside
    hang = next((note for note in snapshot.health.notes if idle_s > 60 and note.startswith("no training step")), "")
    if snapshot.ended_by and (hang or snapshot.ended_by.endswith(OF_CRASHES)):
        inside = f" in {' > '.join(map(name_of, snapshot.open_sections))}" if snapshot.open_sections else ""
        after = f"{duration_text(idle_s)} without a step" if hang else counted(snapshot.steps, "step")
        why = hang or snapshot.health.error or "Python's traceback, above this report, says why"
        more = "" if first is None else f"Beside that: {brief(first.message)}"
        return Verdict(f"ENDED BY {snapshot.ended_by} after {after}{inside}", why, more, BAD)
    if first is not None:
        headline = f"{row_of(first).label or first.code.replace('-', ' ').upper()}: {brief(first.message)}"
        if first.fix == MORE_STEPS:
            headline = f"TOO SHORT TO JUDGE, after {counted(snapshot.steps, 'step')}: {brief(first.message)}"
        if first.code == MACHINE_BUSY:
            lost_s = first.potential_saving_s
            of_run = f" ({lost_s / snapshot.wall_s:.0%} of this run)" if snapshot.wall_s else ""
            return Verdict(headline, "", f"That cost {duration_text(lost_s)}{of_run}; all times include it", BAD)
        part, up_to = next(((action.part, action.up_to) for action in first.actions), (1.0, ""))
        seconds, share = (part or 1.0) * first.potential_saving_s, saved_share(snapshot, first, part or 1.0)
        when = "of the start" if row_of(first).is_before_training else "after the last step"
        saved = f"{duration_text(seconds)} {when}" if share is None else of_training(share, seconds)
        saving = f"{'Change 1 can save ' + up_to if part else 'It costs '}{saved}"
        more = "all times include this waiting" if first.code == SHARED_GPU else ""
        return Verdict(headline, more, saving if first.potential_saving_s else "", BAD)
    if not snapshot.steps:
        return Verdict("no training step was recorded", "", "", UNCLEAR)
    if (missing := too_little_data(snapshot)) is not None:
        return Verdict("too few steps to judge", missing, "", UNCLEAR)
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
        return Verdict("no single bottleneck found", slowly.message.partition(", but ")[2], "", UNCLEAR)
    parts = [text for text, share in others.items() if share >= SHOWN_FROM]
    parts += ["forward, backward and optimizer"] if shares else []
    details = [f"{computing:.0%} of step time is {', '.join(parts)}"] if shares or others[REPLAYS] >= SHOWN_FROM else []
    outside_s = snapshot.wall_s - (0.0 if snapshot.step is None else snapshot.step.total_s)
    if outside_s > MOST_OF_IT * snapshot.wall_s:
        details.append(f"{outside_s / snapshot.wall_s:.0%} of this run is outside training steps")
    if is_busy is None:
        details.append("how busy the device was is not known")
    return Verdict(headline, "; ".join(details), "", UNCLEAR if is_busy is None else GOOD)


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


def checklist(snapshot: Snapshot) -> list[Check]:
    """Return targets of a well-tuned training, each beside the measured figure, the most important first."""
    share, step, machine, full = snapshot.share_of_step, snapshot.step, snapshot.machine, fullest(snapshot)
    busy = None if machine is None or machine.least_busy is None else machine.least_busy[0]
    known = step is not None and step.settled_count > 1 and step.avg_s > 0
    variation = step.std_s / step.avg_s if step is not None and known else None
    data = [part for part in (share(DATA_LOADING), share(DATA_GENERATION)) if part is not None]
    forward, backward = share(FORWARD_PASS), share(BACKWARD_PASS)
    both = None if forward is None or backward is None else forward + backward
    kernel = "" if snapshot.throughput is None else snapshot.throughput.attention
    is_flash = PASS if kernel.startswith(("flash", "cudnn", "fused")) else FAIL
    transfer = share(DATA_TRANSFER) if snapshot.is_by_device(DATA_TRANSFER) else None
    overlap = None if snapshot.gradient_sync is None else snapshot.gradient_sync.overlap
    return [
        check("GPU utilization", "> 80%", busy, lambda share: share > 0.80),
        check("step time variation (coefficient of variation)", "< 10%", variation, lambda share: share < 0.10),
        check("GPU memory", "85-95%", None if full is None else full[1], lambda share: 0.85 <= share <= 0.95),
        check("data time", "< 10%", sum(data) if data else None, lambda share: share < 0.10),
        check("forward", "35-40%", forward, lambda share: 0.35 <= share <= 0.40),
        check("backward", "40-45%", backward, lambda share: 0.40 <= share <= 0.45),
        check("optimizer", "< 15%", share(OPTIMIZER_STEP), lambda share: share < 0.15),
        check("forward + backward dominate", "> 50%", both, lambda share: share > 0.50),
        Check("flash attention", "in use", is_flash if kernel else UNKNOWN, kernel),
        check("CPU-GPU transfer gaps", "< 1% of the device's time", transfer, lambda share: share < 0.01),
        # Half: the last bucket cannot overlap with anything, and a small model has only two or three buckets.
        check("all-reduce overlapped with computation", "> 50% of it", overlap, lambda share: share > 0.50),
    ]


def checklist_lines(snapshot: Snapshot, layout: Layout) -> list[str]:
    """Return the checklist as text: in columns where they fit, else a check and its target, if need be below it."""
    checks = checklist(snapshot)
    lines = check_lines(checks)
    if not layout.is_lines and max(map(len, lines)) > layout.width:
        lines = []
        for result in checks:
            measured = f": {result.measured}" if result.measured else ""
            line, target = f"{result.verdict:<{len(UNKNOWN)}}  {result.what}{measured}", f"(target {result.target})"
            is_one = len(line) + 1 + len(target) <= layout.width
            lines += [f"{line} {target}"] if is_one else [line, " " * (len(UNKNOWN) + 2) + target]
    return ["Quick Checklist:", *lines]
