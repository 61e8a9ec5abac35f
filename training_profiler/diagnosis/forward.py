"""Rules about forward passes: in Python, repeated, or with a graph that nothing uses."""

from collections.abc import Sequence
from dataclasses import replace
from statistics import median
from typing import Final

from training_profiler.base.sections import (
    DATA_LOADING,
    FORWARD_PASS,
    FORWARD_WITHOUT_GRAD,
    ROLLOUT,
    SYNCHRONIZATION,
    VALIDATION_EPOCH,
)
from training_profiler.diagnosis.finding import RECORDING_COSTS, Change, Finding, Fix
from training_profiler.diagnosis.places import (
    IN_NO_MODEL,
    ONE_HOT,
    SAMPLES_NEEDED,
    activities,
    fix_of,
    in_python,
    lines_of,
    loops,
    place_of_most,
    places_named,
    places_text,
    spent_text,
)
from training_profiler.diagnosis.program import is_on_cpu
from training_profiler.diagnosis.registry import RULES, cost_of_steps, per_step
from training_profiler.model.snapshot import EpochStats, LineStats, Snapshot

USUAL: Final = 1.1  # x the median forward pass; a longer one may have been delayed
COLD: Final = 4.0  # x the usual time, at most, of operators in a first step
ALIKE: Final = 2.0  # x the shortest one, up to which the median pass has no more operators
MOSTLY: Final = 0.5  # of a line's time in Python, with short operators
A_GOOD_PART: Final = 0.3  # of the forward pass
FROZEN_PASSES: Final = (FORWARD_PASS, FORWARD_WITHOUT_GRAD, ROLLOUT)


@RULES.rule(
    "python-in-forward",
    threshold=0.15,  # of step time
    label="PYTHON",
    claims=(FORWARD_PASS,),
    saves=(0.3, 1.1),
    changes=(Change.AHEAD_OF_TIME,),
    explains_idle=True,
)
def python_in_forward(snapshot: Snapshot, threshold: float) -> Finding | None:
    """Flag a forward pass on the CPU of which a good part is in no operator of torch.

    None where operators were not counted, as in compiled code. Where they were too many to be counted, loops in Python
    that samples show count, with the short operators that they start.
    """
    program, outside, forward_s = snapshot.program, _outside_operators(snapshot), snapshot.total_of_step_s(FORWARD_PASS)
    if not is_on_cpu(program) or outside is None or not forward_s:
        return None
    seconds, part = outside
    cost = cost_of_steps(snapshot, threshold, min(forward_s, seconds))
    if part < A_GOOD_PART:
        return None
    if program.forward is None:
        what = f"is in loops of Python that start short operators, over {program.uncounted:,} in a step"
        lines = place_of_most(loops(snapshot), snapshot)
    else:
        what = "is not in torch's operators, but in Python or in other libraries"
        all_lines = snapshot.lines_of_steps(FORWARD_PASS)
        python = {(line.place, line.function): line.share for line in in_python(all_lines)}
        mostly = [each for each in all_lines if python.get((each.place, each.function), 0) >= MOSTLY * each.share > 0]
        lines = place_of_most(mostly, snapshot)
    return cost.finding(
        f"{part:.0%} of the forward pass {what} ({cost.per_step} per step)"
        + "".join(f"; above all in {line}" for line in lines.values()),
        "Do this work once, ahead of time, or in the data set and its workers; or compute a whole batch at once "
        "with tensors",
        share_of_forward=part,
        **lines,
    )


def _sampled(snapshot: Snapshot, lines: Sequence[LineStats]) -> float:
    """Return the part of the forward pass that these lines of it take; 0 if too few samples show it."""
    section, samples = snapshot.sections.get(FORWARD_PASS), snapshot.lines_of_steps(FORWARD_PASS)
    if section is None or not section.share or sum(line.samples for line in samples) < SAMPLES_NEEDED:
        return 0.0
    return min(1.0, sum(line.share for line in lines) / section.share)


def _outside_operators(snapshot: Snapshot) -> tuple[float, float] | None:
    """Return the time of forward passes that is surely in no operator, and its part of a step's; None if unknown.

    The counted step may have been delayed, by another program for example; the shortest forward pass was not. That may
    include operators between two modules, which are not counted; the calls of the counted step do not. What is between
    operators counts as theirs, unless samples of lines show loops in Python there. These are a part of all passes, of
    which the shortest may be a small batch, and count as far as a counted step of usual length has time for them, or as
    passes that are alike have time beside these operators. Waiting for other ranks there is neither.
    """
    counted, section, step = snapshot.program.forward, snapshot.sections.get(FORWARD_PASS), snapshot.step
    if section is None or not section.min_s or step is None:
        return None
    if counted is None:
        part = _sampled(snapshot, loops(snapshot)) if snapshot.program.uncounted else 0.0
        return (part * section.settled_total_s, part) if part else None
    own, waits = 1.0, snapshot.sections.get(SYNCHRONIZATION)  # in the mean
    if waits is not None and waits.parent == FORWARD_PASS and section.step_total_s:
        own = 1 - min(waits.step_total_s, section.step_total_s - section.step_self_s) / section.step_total_s
    calls_s, passes = own * counted.calls_s, own * per_step(snapshot, FORWARD_PASS)
    least_s = min(calls_s, section.min_s * passes)
    outside_s = max(0.0, least_s - counted.operators_s)
    if not least_s:
        return None
    # From one operator to the next, with counting and the calls of modules between them; measured: 8 to 25 us.
    between_s = 40e-6 * counted.operators
    usual_s, most = (section.p50_s or 0.0) * passes, outside_s / least_s
    if least_s <= usual_s <= min(ALIKE * least_s, calls_s):
        # The counted step is one of the first, in which operators take longer, too.
        longer = max(1.0, min(COLD, (calls_s - between_s) / usual_s))
        most = max(most, 1 - counted.operators_s / longer / usual_s)
    if calls_s <= USUAL * usual_s:
        most = max(most, (calls_s - counted.operators_s - between_s) / calls_s)
    sampled = min(most, _sampled(snapshot, in_python(snapshot.lines_of_steps(FORWARD_PASS))))
    surely_s = max(0.0, outside_s - between_s)
    seconds = max(sampled * own * section.settled_total_s, surely_s * step.settled_count)
    return seconds, max(sampled, surely_s / least_s)


@RULES.rule(
    "calls-in-forward", threshold=0.15, label="NEEDLESS CALLS", claims=(FORWARD_PASS,), saves=(0.5, 1.6)
)  # of step time
def calls_in_forward(snapshot: Snapshot, threshold: float) -> Finding | None:
    """Flag a forward pass of which a good part writes, reads, draws, waits or multiplies one-hot vectors."""
    section, lines = snapshot.sections.get(FORWARD_PASS), snapshot.lines_of_steps(FORWARD_PASS)
    if section is None or not section.share or _sampled(snapshot, lines) < MOSTLY:
        return None
    spent = [each for each in activities(section.share, lines, has_forward=True) if each.activity in IN_NO_MODEL]
    part = sum(each.lines_part for each in spent)
    if any(each.activity is ONE_HOT for each in spent):
        part = min(1.0, part + _spent_on_vectors(lines) / section.share)
    if part < A_GOOD_PART:
        return None
    cost = cost_of_steps(snapshot, threshold, min(1.0, part) * (snapshot.total_of_step_s(FORWARD_PASS) or 0.0))
    places = places_text(places_named(lines_of(spent, lines), section.share), section.share)
    return cost.finding(
        f"The forward pass does needless work ({cost.per_step} per step), {spent_text(spent)}: {places}",
        fix_of(spent),
        part_of_forward=part,
        lines=places,
    )


def _spent_on_vectors(lines: Sequence[LineStats]) -> float:
    """Return the time of what converts and multiplies one-hot vectors, in the functions that make them.

    To convert integers to floats and to multiply these takes as long as to make them, and what is longer may be more.
    """
    makers = {(each.file, each.function) for each in lines if any(map(ONE_HOT.matches, each.called))}
    made = others = 0.0
    for each in lines:
        making = sum(share for name, share in each.called.items() if ONE_HOT.matches(name))
        made += making
        if (each.file, each.function) in makers and not each.inside and making <= MOSTLY * each.share:
            others += each.share - making  # the rest of the other lines is theirs already
    return min(made, others)


def _sections_of_frozen(finding: Finding) -> tuple[str, ...]:
    with_grad = finding.evidence["with_gradients"]
    return (FORWARD_PASS, FORWARD_WITHOUT_GRAD) if with_grad else (FORWARD_WITHOUT_GRAD, ROLLOUT, FORWARD_PASS)


def _saves_of_frozen(finding: Finding, _: Snapshot) -> tuple[float, float]:
    saving_s = finding.potential_saving_s
    # Kept outputs take the place of the inputs, and may be read faster.
    return 0.6, max(1.3, (saving_s + float(finding.evidence["loading_s"])) / saving_s)


@RULES.rule(
    "frozen-forward",
    threshold=0.15,  # of step time
    claims=_sections_of_frozen,
    saves=_saves_of_frozen,
    changes=(Change.KEPT_FEATURES,),
)
def frozen_forward(snapshot: Snapshot, threshold: float) -> Finding | None:
    """Flag a module that is not trained and has a batch as its input, in over 15 % of step time, from epoch to epoch.

    Inputs need not be loaded either then: at most, that time is saved as well. Silent with less than two epochs, and
    where later epochs do without it: they may read what the first one kept.
    """
    step, facts = snapshot.step, snapshot.program.frozen
    epochs = max(len(snapshot.epochs), snapshot.program.epochs)
    if step is None or facts is None:
        return None
    if facts.batches < 8 or epochs < 2 or not _goes_on(snapshot.epochs, facts.seconds):
        return None
    frozen_s = min(step.settled_s, facts.part * sum(snapshot.total_of_step_s(name) or 0.0 for name in FROZEN_PASSES))
    # In the first epoch, the features have to be computed.
    all_steps = sum(epoch.steps for epoch in snapshot.epochs)
    is_complete = len(snapshot.epochs) == epochs and all_steps
    again = 1 - (snapshot.epochs[0].steps / all_steps if is_complete else 1 / epochs)
    cost = cost_of_steps(snapshot, threshold, frozen_s, saved=again)
    at = f" (called at {facts.place})" if facts.place else ""
    more = f" and {facts.modules - 1} more" if facts.modules > 1 else ""
    does = "are not trained, and compute their" if more else "is not trained, and computes its"
    return cost.finding(
        f"{facts.module}{more}{at} {does} outputs again in each of {epochs} epochs: {cost.per_step} per step, "
        f"{cost.share:.0%} of step time",
        "If each epoch has the same inputs, without random augmentation, compute these outputs once, keep them in "
        "memory or in a file, and train on them",
        part_of_forward=facts.part,
        epochs=epochs,
        with_gradients=int(facts.has_grad),
        module=facts.module,
        lines=facts.place,
        loading_s=again * (snapshot.total_of_step_s(DATA_LOADING) or 0.0),
    )


def _goes_on(epochs: tuple[EpochStats, ...], batch_s: float) -> bool:
    """Return whether later epochs have these forward passes, too, as far as their times are known."""
    passes_s = [
        sum(epoch.self_s.get(name, 0.0) for name in FROZEN_PASSES) / (epoch.batches or epoch.steps)
        for epoch in epochs[1:]
        if epoch.steps
    ]
    return not passes_s or median(passes_s) >= 0.5 * batch_s


def _sections_of_repeated(finding: Finding) -> tuple[str, ...]:
    if not finding.evidence["without_gradients"]:
        return (FORWARD_PASS,)
    return (VALIDATION_EPOCH,) if finding.evidence["in_validation"] else (FORWARD_WITHOUT_GRAD, ROLLOUT)


@RULES.rule("repeated-forward", 0.05, claims=_sections_of_repeated, saves=(0.8, 1.2))  # of step time
def repeated_forward(snapshot: Snapshot, threshold: float) -> Finding | None:
    """Flag a module that runs again for the same input, in each step or at times; None where it was not looked for.

    Two passes with dropout and with gradients may be wanted, so they have no saving.
    """
    step, facts = snapshot.step, snapshot.program.repeats
    if step is None or facts is None or facts.steps < 10:
        return None
    is_each_step = facts.steps_with >= 0.9 * facts.steps
    forward, repeated_s = snapshot.sections.get(FORWARD_PASS), facts.seconds / facts.steps * step.settled_count
    if snapshot.is_by_device(FORWARD_PASS) and forward is not None and step.count:
        # As much of the device's time as of the forward passes.
        part = min(1.0, facts.calls / facts.steps / (forward.count / step.count)) if forward.count else 0.0
        repeated_s = part * (snapshot.total_of_step_s(FORWARD_PASS) or 0.0)
    else:
        repeated_s = min(step.settled_s, repeated_s)
    cost = cost_of_steps(snapshot, threshold, repeated_s)
    if not is_each_step and facts.steps_with < 3:  # fewer may be chance
        return None
    is_metric, is_random = facts.without_grad > MOSTLY * facts.calls, facts.random > MOSTLY * facts.calls
    where = f" at {facts.place}" if facts.place else ""
    how = ", also without gradients" if is_metric else ""
    in_validation = is_metric and not {FORWARD_WITHOUT_GRAD, ROLLOUT} & snapshot.sections.keys()
    when = "" if is_each_step else f", in {facts.steps_with} of {facts.steps} steps that were looked at"
    of_a_step = "per step" if is_each_step else "per step on average"
    of_step = "outside of steps" if in_validation else f"{cost.share:.0%} of step time"
    if is_random and not is_metric:
        cost = replace(cost, saving_s=0.0)
    changes: tuple[Change, ...] = (Change.ONE_FORWARD, Change.DETACH)
    text = "Call it once and use its output twice"
    if is_metric and facts.after_update > MOSTLY * facts.calls:
        text = "Take metrics from the forward pass of the step: they are then from before the update"
        changes = changes[:1]
    elif is_metric:
        text += f"; .detach() gives the values for metrics{', with its dropout' if is_random else ''}"
    elif is_random:
        text += (
            ", unless the method needs two different outputs for one input, as R-Drop and SimCSE do: it draws random "
            "numbers, such as dropout"
        )
        changes = changes[:1]
    else:
        text += "; .detach() is for what must not train it, such as a discriminator"
    return cost.finding(
        f"A model runs again for the same input{where}{how}{when} ({cost.per_step} {of_a_step}, {of_step})",
        Fix(text, changes),
        repeated_a_step=facts.calls / facts.steps,
        steps_with=facts.steps_with,
        without_gradients=int(is_metric),
        random=int(is_random),
        in_validation=int(in_validation),
        lines=facts.place,
    )


@RULES.rule("unused-graphs", 0.1, claims=(FORWARD_PASS,), saves=(0.2, 2.5), changes=(Change.NO_GRAD,))  # of step time
def unused_graphs(snapshot: Snapshot, threshold: float) -> Finding | None:
    """Flag forward passes that record a graph which no backward pass uses, from 10 % of step time on.

    What recording costs is not measured in the run: the saving is that of a usual model on a CPU. A GPU that is the
    bottleneck records while it computes. Validation has a rule of its own.
    """
    step, facts = snapshot.step, snapshot.program.unused_graphs
    if step is None or facts is None or facts.steps < 10 or facts.calls < 0.25 * facts.steps:
        return None  # fewer may be chance, or a log entry now and then
    if snapshot.with_grad_count or snapshot.is_by_device(FORWARD_PASS):
        return None
    spent_s = min(step.settled_s, facts.part * (snapshot.total_of_step_s(FORWARD_PASS) or 0.0))
    cost = cost_of_steps(snapshot, threshold, spent_s, saved=RECORDING_COSTS)
    at = f" at {facts.place}" if facts.place else ""
    return cost.finding(
        f"Forward passes record gradients that no backward pass uses: {facts.calls / facts.of:.0%} of them, "
        f"above all {facts.module}{at} ({cost.per_step} per step, {cost.share:.0%} of step time)",
        "Call it under torch.no_grad(), as for acting, targets and metrics: it takes less memory, too",
        calls=facts.calls,
        of_calls=facts.of,
        steps=facts.steps,
        module=facts.module,
        lines=facts.place,
    )
