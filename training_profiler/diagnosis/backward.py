"""Rules about backward passes that do more than the training needs."""

from collections.abc import Sequence
from functools import partial
from typing import Final

from training_profiler.base.sections import (
    ANOMALIES,
    BACKWARD_HOOK,
    BACKWARD_PASS,
    CUSTOM_BACKWARD,
    FORWARD_HOOK,
    FORWARD_PASS,
    RECOMPUTATION,
    SYNCHRONIZATION,
)
from training_profiler.base.units import ms_text
from training_profiler.diagnosis.change import growing_work
from training_profiler.diagnosis.compute_fixes import COMPUTING_TRIALS, is_device_idle
from training_profiler.diagnosis.finding import RECORDING_COSTS, Change, Finding, Fix, record_steps
from training_profiler.diagnosis.pauses import page_fault_time
from training_profiler.diagnosis.places import in_python, places_text
from training_profiler.diagnosis.program import is_on_cpu
from training_profiler.diagnosis.registry import MIN_SAVING_S, RULES, cost_of_steps, found, has_enough_steps, row_of
from training_profiler.model.lines import hottest_places
from training_profiler.model.program import ANOMALY, HOOKS
from training_profiler.model.snapshot import BETWEEN, OTHER, LineStats, Snapshot

BACKWARD_METHOD: Final = "backward"  # of torch.autograd.Function
MOST_OF_IT: Final = 0.5  # of the time in backward passes
PLACES_NAMED: Final = 2


@RULES.rule(
    "anomaly-detection",
    threshold=0.03,  # of step time
    claims=(FORWARD_PASS, OTHER, BACKWARD_PASS),
    saves=(0.8, 1.6),
    changes=(Change.NO_ANOMALY_DETECTION,),
    explains_idle=True,
)
def anomaly_detection(snapshot: Snapshot, threshold: float) -> Finding | None:
    """Flag a training with anomaly detection, by the samples in which a forward pass keeps a stack.

    To this comes what its checks take of the backward passes: as much of them as of the operators of the counted step.
    """
    step = snapshot.step
    if step is None or not snapshot.program.finds_anomalies:
        return None
    stacks = snapshot.share_of_phase(ANOMALIES)
    spent_s = stacks * snapshot.wall_s * (step.settled_s / step.total_s if step.total_s else 0.0)
    # Operators of the counted step took the host's time, so how long the checks take on a device is unknown.
    checks, checks_s = snapshot.program.nan_checks, None
    if checks.all_s and not snapshot.is_by_device(BACKWARD_PASS):
        checks_s = checks.seconds / checks.all_s * (snapshot.total_of_step_s(BACKWARD_PASS) or 0.0)
    cost = cost_of_steps(snapshot, threshold, min(step.settled_s, spent_s + (checks_s or 0.0)))
    places = snapshot.program.places_of(ANOMALY)
    where = f", switched on at {places}" if places else ""
    checking = "to look for NaN in each gradient"
    more, unknown = ("", f", and more {checking}") if checks_s is None else (f" and {checking}", "")
    return cost.finding(
        f"Autograd's anomaly detection takes {cost.share:.0%} of step time to keep a stack for each operation{more} "
        f"({cost.per_step} per step){where}{unknown}",
        f"Switch anomaly detection off{f' at {places}' if places else ''} (torch.autograd.set_detect_anomaly, "
        "detect_anomaly): use it to find the operation that makes a NaN, and not while training",
        lines=places,
    )


@RULES.rule(
    "needless-create-graph",
    threshold=0.02,  # of step time
    label="NEEDLESS GRAPH",
    claims=(BACKWARD_PASS,),
    saves=(0.3, 2.8),
    changes=(Change.NO_CREATE_GRAPH,),
)
def created_graphs(snapshot: Snapshot, threshold: float) -> Finding | None:
    """Flag `create_graph=True` where no gradient is computed of these gradients before the next update.

    What recording costs is not measured in the run: the saving is that of a usual model.
    """
    step, count = snapshot.step, snapshot.program.created_graphs
    backward_s = snapshot.total_of_step_s(BACKWARD_PASS)
    if step is None or not backward_s or count < 0.9 * step.count:
        return None
    # Of a backward pass; measured on the CPU for MLPs, a convolution and a transformer: 4 to 28 %.
    cost = cost_of_steps(snapshot, threshold, 0.1 * backward_s)
    return cost.finding(
        f"Backward passes record a graph of the gradients (create_graph=True) that nothing uses, in "
        f"{count} of {step.count} steps ({ms_text(backward_s / cost.steps)} per step)",
        "Leave create_graph=True out, unless a gradient is computed of these gradients: it keeps each step's graph "
        "in memory, too",
        passes=count,
        backward_s=backward_s,
    )


OR_READ: Final = "or read .grad after backward()"
AND_KEEP: Final = "and keep tensors instead of reading numbers out of each"


def _of_hooks(
    name: str, phase: str, watch: str, otherwise: str, snapshot: Snapshot, threshold: float
) -> Finding | None:
    """Flag hooks of the program that take over 10 % of step time in these passes; None below 10 samples of them."""
    lines = [line for line in snapshot.lines_of_steps(name) if phase in line.phase.split(BETWEEN)]
    if sum(line.samples for line in lines) < 10 or snapshot.is_by_device(name):  # fewer may be chance
        return None
    growing = growing_work(snapshot, snapshot.thresholds)
    if growing is not None and (growing.evidence["what"], growing.evidence["section"]) == (HOOKS, name):
        return None
    whole = sum(line.share for line in lines)
    cost = cost_of_steps(snapshot, threshold, _sampled_s(snapshot, name, whole))
    texts = places_text([line for line in lines if line.share >= 0.25 * whole][:3], whole)
    above_all = f", above all in {texts}" if texts else ""
    passes = name.replace("_pass", " passes")
    return cost.finding(
        f"Hooks take {cost.share:.0%} of step time in {passes} ({cost.per_step} per step){above_all}",
        f"Hooks that only {watch} can do so every n-th step (remove them meanwhile), {otherwise}; let the others "
        "compute with whole tensors instead of loops in Python",
        seconds=cost.seconds,
        lines=texts,
    )


for code, name, phase, watch, otherwise in (
    ("backward-hooks", BACKWARD_PASS, BACKWARD_HOOK, "watch gradients", OR_READ),
    ("forward-hooks", FORWARD_PASS, FORWARD_HOOK, "watch outputs", AND_KEEP),
):
    changes = Change.LESS_OFTEN, Change.CHEAPER_HOOKS
    rule = RULES.rule(code, 0.10, claims=(name,), saves=(0.3, 1.1), changes=changes, explains_idle=True)
    rule(partial(_of_hooks, name, phase, watch, otherwise))


def _sampled_s(snapshot: Snapshot, name: str, share: float) -> float:
    """Return the time in a section's steps of lines that take ``share`` of the run; 0 if unknown."""
    section = snapshot.sections.get(name)
    if section is None or not section.share:
        return 0.0
    return min(1.0, share / section.share) * (snapshot.total_of_step_s(name) or 0.0)


@RULES.rule(
    "python-in-backward",
    threshold=0.10,  # of step time
    label="PYTHON",
    claims=(BACKWARD_PASS,),
    saves=(0.3, 1.1),
    changes=(Change.WHOLE_TENSORS,),
)
def python_in_backward(snapshot: Snapshot, threshold: float) -> Finding | None:
    """Flag Python and other libraries in own autograd functions, for over 10 % of step time in backward passes.

    Operators of torch in them do not count. None where backward passes run on another thread.
    """
    lines = [line for line in snapshot.lines_of_steps(BACKWARD_PASS) if line.phase == CUSTOM_BACKWARD]
    if not is_on_cpu(snapshot.program) or sum(line.samples for line in lines) < 20:
        return None  # the error of a part of a half is then about 0.1
    python = in_python(lines)
    whole = sum(line.share for line in python)
    cost = cost_of_steps(snapshot, threshold, _sampled_s(snapshot, BACKWARD_PASS, whole))
    texts = places_text(hottest_places(sorted(python, key=lambda line: -line.share))[:PLACES_NAMED], whole)
    return cost.finding(
        f"Backward passes of own autograd functions run Python or other libraries for {cost.share:.0%} of step time "
        f"({cost.per_step} per step), above all in {texts}",
        "Write these functions with torch operations on whole tensors: torch computes their gradients",
        seconds=cost.seconds,
        lines=texts,
    )


@RULES.rule(
    "recomputation", 0.10, claims=(BACKWARD_PASS,), saves=(0.6, 1.4), changes=(Change.CHECKPOINTING,)
)  # of step time
def recomputation(snapshot: Snapshot, threshold: float) -> Finding | None:
    """Flag a training on the CPU that computes parts of the forward pass again, for over 10 % of step time.

    Silent where the machine or the container had less than half of its memory left at any time: then this is needed.
    """
    machine = snapshot.machine
    if not is_on_cpu(snapshot.program) or machine is None or machine.ram_share is None:
        return None
    if machine.samples < 5 or machine.ram_share.max > 0.5:
        return None  # activations that are kept may take as much again as everything else
    of_run = snapshot.share_of_phase(RECOMPUTATION)
    cost = cost_of_steps(snapshot, threshold, _sampled_s(snapshot, BACKWARD_PASS, of_run))
    lines = [
        line
        for line in snapshot.lines_of_steps(FORWARD_PASS)
        if any(name.rpartition(".")[2] in ("checkpoint", "checkpoint_sequential") for name in line.called)
    ]
    texts = places_text(lines[:PLACES_NAMED], sum(line.share for line in lines))
    return cost.finding(
        f"Backward passes compute parts of the forward pass again, for {cost.share:.0%} of step time "
        f"({cost.per_step} per step): activation checkpointing"
        f"{f', called at {texts}' if texts else ''}. At most {machine.ram_share.max:.0%} of the memory was used",
        "As far as memory allows, call blocks of the model without activation checkpointing: all, or some of them",
        seconds=cost.seconds,
        ram_share=machine.ram_share.max,
        lines=texts,
    )


@RULES.rule("unused-gradients", 0.05, claims=(BACKWARD_PASS, FORWARD_PASS), saves=(0.5, 1.5))  # of step time
def unused_gradients(snapshot: Snapshot, threshold: float) -> Finding | None:
    """Flag gradients of parameters that are in no optimizer, for what is over 5 % of step time.

    Their part of the backward pass is taken as that of their modules of the forward pass, and within a module as that
    of the parameters, or as what comes after all gradients that are used. A module whose input needs a gradient passes
    it on in any case; the forward pass of others need not record a graph.
    """
    facts, backward_s = snapshot.program.unused_gradients, snapshot.total_of_step_s(BACKWARD_PASS)
    if facts is None or not backward_s:
        return None
    # A layer multiplies once for the gradient of its weight and once for that of its input.
    part, recording_s, after = facts.part - 0.5 * facts.passed_on, 0.0, facts.after_trained
    if not snapshot.is_by_device(BACKWARD_PASS) and SYNCHRONIZATION not in snapshot.sections:
        if facts.is_whole:
            part = max(part, after)
        elif after:  # the others pass gradients on to trained parameters before them
            part = after + 0.5 * max(0.0, part - after)
        alone = part if facts.is_whole else after
        recording_s = RECORDING_COSTS * alone * (snapshot.total_of_step_s(FORWARD_PASS) or 0.0)
    cost = cost_of_steps(snapshot, threshold, part * backward_s + recording_s)
    at = f", called at {facts.place}" if facts.place else ""
    fix = "Set requires_grad_(False) on these parameters"
    changes: tuple[Change, ...] = (Change.NO_REQUIRES_GRAD,)
    if facts.is_whole:
        fix = "Call it under torch.no_grad() if it only gives targets, or set requires_grad_(False) on these parameters"
        changes = (Change.NO_GRAD, Change.NO_REQUIRES_GRAD)
    rest = ", unless you read their gradients; if they are to be trained, give them to the optimizer"
    return cost.finding(
        f"Backward passes compute gradients of {facts.numbers:,} parameters that are in no optimizer, "
        f"{facts.numbers / facts.of:.0%} of all with gradients: of {facts.module}{at}; a step's backward passes take "
        f"{ms_text(backward_s / cost.steps)}",
        Fix(f"{fix}{rest}", changes),
        parameters=facts.numbers,
        of_parameters=facts.of,
        part_of_forward=facts.part,
        module=facts.module,
        lines=facts.place,  # those of the backward pass start that of all parameters
    )


def _without_other_ranks(finding: Finding, findings: Sequence[Finding], snapshot: Snapshot) -> Finding | None:
    """Return the finding; None where a backward pass mostly waits for a rank that another finding names."""
    of_ranks = [each for each in findings if row_of(each).is_of_other_rank]
    if snapshot.ranks is None or not of_ranks:
        return finding
    settled_s = 0.0 if snapshot.step is None else snapshot.step.settled_s
    share = snapshot.ranks.waiting_share if snapshot.ranks.waiting_share is not None else snapshot.ranks.sync_share
    waited_s = max(sum(each.potential_saving_s for each in of_ranks), (share or 0.0) * settled_s)
    backward_s, forward_s, threshold = (
        float(finding.evidence[key]) for key in ("backward_s", "forward_s", "threshold")
    )
    return finding if backward_s - waited_s > threshold * forward_s else None


@RULES.rule(
    "backward-slow",
    threshold=3.0,  # 2x is expected: twice the arithmetic
    label="COMPUTE-BOUND",
    says_where=True,
    claims=(BACKWARD_PASS,),
    saves=(0.0, 1.5),
    try_=COMPUTING_TRIALS,
    is_uneven=True,
    beside=_without_other_ranks,
)
def backward_against_forward(snapshot: Snapshot, threshold: float) -> Finding | None:
    """Flag a backward pass that takes over three times the forward pass; None if either was not measured.

    Unattributed time counts as forward pass: functional code computes its loss outside of every module. With more
    backward passes than forward passes, such as gradients of gradients, each is compared with a forward pass. Page
    faults are another finding; all of them may be in the backward pass, whose gradients are new memory.
    """
    forward_s = snapshot.total_of_step_s(FORWARD_PASS)
    backward_s = snapshot.total_of_step_s(BACKWARD_PASS)
    if not forward_s or backward_s is None or not has_enough_steps(snapshot):
        return None
    if snapshot.is_by_device(FORWARD_PASS) != snapshot.is_by_device(BACKWARD_PASS):
        return None  # host time of one and device time of the other cannot be compared
    if snapshot.is_by_device(BACKWARD_PASS) and is_device_idle(snapshot):
        return None  # its times are those in which the host launches work, which says nothing about the work
    waits = snapshot.sections.get(SYNCHRONIZATION)
    if waits is not None and waits.parent == BACKWARD_PASS and not snapshot.is_by_device(BACKWARD_PASS):
        backward_s -= snapshot.total_of_step_s(SYNCHRONIZATION) or 0.0  # waiting for other ranks is not its own work
    faults = None if snapshot.is_by_device(BACKWARD_PASS) else page_fault_time(snapshot)
    if faults is not None and snapshot.step is not None and snapshot.step.total_s:
        backward_s -= faults.seconds * snapshot.step.settled_s / snapshot.step.total_s
    other_s = 0.0 if snapshot.is_by_device(FORWARD_PASS) else snapshot.total_of_step_s(OTHER) or 0.0
    forward = "forward pass" if other_s <= 0.1 * forward_s else "forward pass and the time in no section"
    forwards, backwards = (snapshot.sections[name].count for name in (FORWARD_PASS, BACKWARD_PASS))
    forward_s = (forward_s + other_s) * max(1.0, backwards / forwards if forwards else 1.0)
    ratio = backward_s / forward_s
    potential_saving_s, own = backward_s - 2 * forward_s, _own_function(snapshot)
    if ratio <= threshold or potential_saving_s < MIN_SAVING_S:
        return None
    if own is not None:
        potential_saving_s = min(backward_s, own.share / snapshot.sections[BACKWARD_PASS].share * backward_s)
    fix = Fix(
        "Check for memory pressure, activation checkpointing (recomputation) and custom autograd functions without a "
        "fused backward",
        (Change.CHECKPOINTING,),
        (record_steps(snapshot.steps),),
    )
    if own is not None:
        text = f"Do less in {own.place} {own.what}: operations on whole tensors, and no loops over their elements"
        fix = Fix(text, (Change.WHOLE_TENSORS,))
    return found(
        f"The backward pass takes {ratio:.1f}x as long as the {forward} (usual: 2x)",
        {"ratio": ratio, "threshold": threshold, "backward_s": backward_s, "forward_s": forward_s},
        fix,
        saving_s=potential_saving_s,
    )


def _own_function(snapshot: Snapshot) -> LineStats | None:
    """Return the hottest place, if it is the backward method of an own autograd function and not that of a trainer."""
    section, places = snapshot.sections[BACKWARD_PASS], snapshot.hottest(BACKWARD_PASS, of_steps=True)
    if not places or places[0].share < MOST_OF_IT * section.share:
        return None
    place = places[0]
    calls_it = sum(share for name, share in place.called.items() if name.rpartition(".")[2] == BACKWARD_METHOD)
    is_own = place.function.rpartition(".")[2] == BACKWARD_METHOD and bool(place.called) and not place.inside
    return place if is_own and calls_it < MOST_OF_IT * place.share else None
