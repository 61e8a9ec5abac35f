"""The rule about steps that take longer from one of them on, and what changed there."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Final

from training_profiler.base.sections import BACKWARD_PASS, FORWARD_PASS, OPTIMIZER_STEP, name_of
from training_profiler.base.units import time_text
from training_profiler.diagnosis.finding import Action, Change, Finding, Fix, record_steps
from training_profiler.diagnosis.machine import (
    EXPLAINS,
    HYPERVISOR,
    MACHINE_BUSY,
    MEMORY,
    OTHERS,
    QUOTA,
    SAMPLES_NEEDED,
    THE_MACHINE,
    cpu_loss,
)
from training_profiler.diagnosis.registry import (
    MIN_SAVING_S,
    RULES,
    claimed_in_steps_s,
    cost_of_steps,
    found,
    moves_with,
)
from training_profiler.model.program import GRAPH, HOOKS, PUT_TOGETHER, SIZE, SUBNORMAL, UPDATED, Grown
from training_profiler.model.snapshot import OTHER, PROFILER, LineChange, MemoryChange, Snapshot, StepChange

WRITES: Final = frozenset(("open", "dump", "dumps", "save", "write", "writelines", "writerows", "to_csv", "to_json"))
COPIED: Final = Fix(
    "Make the tensor once with room for all, and write rows into it: one that grows by a piece is copied as a whole "
    "each time; or keep the pieces in a list (.detach()) and put them together once",
    (Change.DETACH, Change.ROOM_FOR_ALL),
)
CARRIES: Final = 0.5  # of the added time: from here on a section or the machine is named as the cause
MOST_OF_SECTION: Final = 0.8  # of its time: from here on two lines are named
_SLOWED: Final = {  # the sections that take longer with more of it
    HOOKS: (FORWARD_PASS, BACKWARD_PASS),
    UPDATED: (OPTIMIZER_STEP,),
    SUBNORMAL[0]: (OPTIMIZER_STEP,),
    SUBNORMAL[1]: (FORWARD_PASS, BACKWARD_PASS, OPTIMIZER_STEP),
}
WORKS_MORE: Final = 0.05  # forward passes or input elements, against before
CLOCK: Final = "the device's clock"
_MACHINE: Final = {
    OTHERS: "other programs have the CPUs",
    QUOTA: "the container's CPU quota stops the training",
    HYPERVISOR: "the hypervisor gives the CPUs to others",
    MEMORY: "programs wait for memory pages",
}
OF_THE_MACHINE: Final = {
    THE_MACHINE: "End what began on this machine then (see top), or reserve CPUs, before changing code",
    CLOCK: "Cool it, or raise its power limit (see nvidia-smi -q -d PERFORMANCE,CLOCK), before changing code",
}
ALL_ALIKE: Final = (  # what the program does more of makes one part longer, or few
    "See in top -H, beside the training, other programs and threads that it starts, and the machine's clock and heat, "
    "before changing what a step does"
)
WHAT_BEGINS: Final = "Look for what begins there: a schedule, another phase of the data, other work on the machine"


@RULES.rule(
    "growing-graph",
    0.10,  # of step time
    claims=(BACKWARD_PASS,),
    saves=(0.7, 1.1),
    changes=(Change.DETACHED_STATE,),
)
def growing_graph(snapshot: Snapshot, threshold: float) -> Finding | None:
    """Flag backward passes through graphs of ever more earlier steps, which take over 10 % of step time.

    The time of a backward pass counts as that of its nodes. What the graph of one step alone has would be left.
    """
    facts = next((each for each in snapshot.program.grown if each.kind == GRAPH), None)
    if facts is None or facts.points[-1][1] < facts.own or not facts.name + facts.place:
        return None
    first, last = (round(point[1]) for point in (facts.points[0], facts.points[-1]))
    mean = _mean_amount(facts, 0, 1)
    backward_s = snapshot.total_of_step_s(BACKWARD_PASS) or 0.0
    cost = cost_of_steps(snapshot, threshold, backward_s * mean / (mean + facts.own))
    at = f" at {facts.place}" if facts.place else ""
    leads = f", and {facts.name} leads there" if facts.name else ""
    name = facts.name or "state"
    return cost.finding(
        f"The graph of each step reaches into the steps before: the backward pass{at} goes through {last:,} nodes of "
        f"earlier steps at the end, {first:,} at first, and {facts.own:,} of its own{leads}",
        f"Detach {f'{name} after each step' if facts.name else 'what a step takes from the one before'} "
        f"({name} = {name}.detach(), or each tensor in it), and leave retain_graph out",
        nodes=last,
        nodes_at_first=first,
        own_nodes=facts.own,
        variable=facts.name,
        lines=facts.place,
    )


def amount_at(grown: Grown, part: float) -> float:
    """Return how much there was after a part of the run, 0 to 1; in a straight line beyond its last point."""
    at, points = part * grown.passes, grown.points
    before, after = next(((one, other) for one, other in pairwise(points) if at <= other[0]), points[-2:])
    slope = (after[1] - before[1]) / (after[0] - before[0])
    return max(0.0, before[1] + slope * (at - before[0]))


def _mean_amount(grown: Grown, first: float, end: float) -> float:
    return sum(amount_at(grown, first + (end - first) * (at + 0.5) / 20) for at in range(20)) / 20


def kept_in(snapshot: Snapshot, grown_bytes: float, seconds: float) -> Grown | None:
    """Return the variable that has most of what memory grew by; None where none is known, or its growth has ended.

    Else one that keeps a tensor of every second step or more: memory between small ones is not given back.
    """
    step = snapshot.step
    trained_s = snapshot.wall_s - ((step and step.before_s) or 0.0)
    since = max(0.0, 1 - seconds / trained_s) if trained_s > 0 else 0.0
    kept = [
        (each.element_bytes * (amount_at(each, 1.0) - amount_at(each, since)), at)
        for at, each in enumerate(snapshot.program.grown)
        if each.element_bytes and each.place and each.points[-1][1] > each.points[-2][1]
    ]
    rise, at = max(kept, default=(0.0, 0))
    if 0.5 * grown_bytes <= rise <= 2 * grown_bytes:
        return snapshot.program.grown[at]
    small = [snapshot.program.grown[at] for _, at in kept if snapshot.program.grown[at].are_tensors]
    return next((each for each in small if each.points[-1][1] >= 0.5 * each.points[-1][0]), None)


@RULES.rule(
    "growing-work",
    0.05,  # of step time
    claims=lambda finding: (str(finding.evidence["section"]),),
    saves=(0.7, 1.1),
)
def growing_work(snapshot: Snapshot, threshold: float) -> Finding | None:
    """Flag what takes longer and longer with something that grows, over 5 % of step time; None below 100 steps.

    That is a line that works through a variable, passes with more and more hooks of a module or parameter, or an
    optimizer with more and more parameters, or with subnormal floats where the CPU is slow with these.
    What grows by far less than the time, or evenly while steps become longer at once, is not the reason.
    """
    step = snapshot.step
    change = None if step is None else step.change or step.halves
    if step is None or change is None or step.settled_count < 100 or change.after_s <= change.before_s:
        return None
    if work_of(change) is not None:
        return None
    section, _ = cause_of(change)
    if section not in change.sections:
        return None
    for line in _lines_in_question(change, section):
        reasons = (each for each in snapshot.program.grown if _is_reason(each, change, section, line, step.count))
        if (grown := next(reasons, None)) is not None:
            break
    else:
        return None
    is_line = grown.kind == SIZE and line is not None
    before_s, after_s = (line.before_s, line.after_s) if is_line and line else change.sections[section]
    others = [
        each
        for each in change.lines.get(section, ())
        if is_line and each != line and _is_worked_through(grown, each.line)
    ]
    is_copied = is_line and copying_part(change) > 0  # else others have less to work through, too
    also_s = 0.0 if is_copied else sum(each.after_s - each.before_s for each in others)
    if change.is_abrupt:
        saved_s = (after_s - before_s + also_s) * (step.count - change.step + 1)
    else:  # as with the amount, of which the first step has least
        part = (change.step - 1) / step.count
        least, then, now = amount_at(grown, 0), _mean_amount(grown, 0, part), _mean_amount(grown, part, 1)
        first_s = max(0.0, before_s - (after_s - before_s) * (then - least) / max(now - then, 1e-9))
        saved_s = (part * before_s + (1 - part) * after_s - first_s + also_s) * step.settled_count
    is_of_forward = is_line and line is not None and line.after_s > change.sections[section][1]
    most_s = sum(snapshot.total_of_step_s(each) or 0.0 for each in (section, FORWARD_PASS)[: 1 + is_of_forward])
    cost = cost_of_steps(snapshot, threshold, min(saved_s, most_s))
    where = line.line if is_line and line else name_of(section)
    first, last = grown.points[0][1], grown.points[-1][1]
    then_s, now_s = map(sum, zip(*change.sections.values(), strict=True))
    return cost.finding(
        f"{where} takes longer as {_growth_text(grown)} while the step grew from {time_text(then_s)} to "
        f"{time_text(now_s)}: {time_text(before_s)} of it before step {change.step}, "
        f"{time_text(after_s)} after",
        COPIED if is_copied else _growth_fix(grown, line.called if is_line and line else ""),
        section=section,
        what=grown.kind,
        variable=grown.name,
        first=first,
        last=last,
        lines=line.line if is_line and line else grown.place,
    )


def names_growth(snapshot: Snapshot) -> bool:
    """Return whether another rule names what steps become longer with."""
    change = None if snapshot.step is None else snapshot.step.change or snapshot.step.halves
    is_backward = change is not None and cause_of(change)[0] == BACKWARD_PASS
    rules = (growing_work, growing_graph) if is_backward else (growing_work,)
    return any(rule(snapshot, snapshot.thresholds) is not None for rule in rules)


def _lines_in_question(change: StepChange, section: str) -> Iterator[LineChange | None]:
    """Yield the line that carries a rise; of backward passes also that of the forward pass, with its gradients."""
    yield _line_that_rose(change, section)
    if section == BACKWARD_PASS and FORWARD_PASS in change.sections:
        line, (before_s, after_s) = _line_that_rose(change, FORWARD_PASS), change.sections[section]
        if line is not None:
            yield replace(line, before_s=line.before_s + before_s, after_s=line.after_s + after_s)


def _is_reason(grown: Grown, change: StepChange, section: str, line: LineChange | None, steps: int) -> bool:
    """Return whether something grows where, when, and as much as the time of a step does."""
    if grown.kind == SIZE:
        if line is None or not _is_worked_through(grown, line.line):
            return False
        before_s, after_s = line.before_s, line.after_s
    elif section in _SLOWED.get(grown.kind, ()):
        before_s, after_s = change.sections[section]
    else:
        return False
    before, after = (amount_at(grown, (change.step + other) / 2 / steps) for other in (0, steps))
    if after < 1.25 * before or (before_s and after_s / before_s > 1.25 * (after / max(before, 1e-9)) ** 2):
        return False
    if grown.kind in SUBNORMAL and change.is_abrupt:  # it may rise at once between looks
        first_at, last_at = (at / steps * grown.passes for at in (change.first_step, change.last_step))
        first = max((point[1] for point in grown.points if point[0] <= first_at), default=grown.points[0][1])
        last = min((point[1] for point in grown.points if point[0] >= last_at), default=after)
        return last - first >= 0.5 * (grown.points[-1][1] - grown.points[0][1])
    first, last = (amount_at(grown, at / steps) for at in (change.first_step, change.last_step))
    return not change.is_abrupt or (first - before) + (after - last) <= 0.7 * (after - before)


def _is_worked_through(grown: Grown, place: str) -> bool:
    """Return whether the line of ``place``, "train.py:41 main", works through a variable."""
    file, _, number = place.partition(" ")[0].rpartition(":")
    if not number.isdigit() or not ("/" + grown.path.replace("\\", "/")).endswith("/" + file):
        return False
    return any(first <= int(number) <= last for first, last in grown.lines)


def _growth_text(grown: Grown) -> str:
    first, last = grown.points[0][1], grown.points[-1][1]
    if grown.kind == SIZE:
        return f"{grown.name} grew from {first:,.0f} to {last:,.0f} elements"
    if grown.kind in SUBNORMAL:
        return f"subnormal floats grew from {first:.0f}% to {last:.0f}% of {grown.name}"
    if grown.kind == UPDATED:
        at = f", added at {grown.place}" if grown.place else ""
        return f"the parameters of {grown.name} grew from {first:,.0f} to {last:,.0f}{at}"
    at = f", the newest from {grown.place}" if grown.place else ""
    return f"the hooks of {grown.name} grew from {first:,.0f} to {last:,.0f}{at}"


def _growth_fix(grown: Grown, called: str) -> Fix:
    if grown.kind == HOOKS:
        return Fix("Register the hook once, before the loop, or remove() its handle", (Change.CHEAPER_HOOKS,))
    if grown.kind == UPDATED:
        text = "Give it each parameter once, before the loop (add_param_group or param_groups in each step adds more)"
        return Fix(text, (Change.PARAMETERS_ONCE,))
    if grown.kind in SUBNORMAL:
        text = (
            "torch.set_flush_denormal(True) at the top of the program: later, threads that run already stay as they are"
        )
        return Fix(text, (Change.FLUSHED,))
    if called.rpartition(".")[2] in WRITES:
        text = f"Append what is new to the file (a line a step), or write {grown.name} less often"
        return Fix(text, (Change.LESS_OUTPUT,))
    text = (
        f"Keep a running figure, or the last elements of {grown.name} alone, instead of working through all of it, or "
        "do so every n-th step"
    )
    return Fix(text, (Change.CHEAPER_LINES,))


def rest_of_rise(finding: Finding, others: Sequence[Finding], snapshot: Snapshot) -> Finding | None:
    """Return what a rise costs beyond the claimed sections: it lies in them as much as in the others.

    Where the machine is the cause, its finding has the seconds, and this one the step.
    """
    settled_s = 0.0 if snapshot.step is None else snapshot.step.settled_s
    if not settled_s:
        return finding
    _, explained = moves_with(finding, snapshot)
    left = 1 - min(1.0, claimed_in_steps_s(others) / settled_s)
    finding = replace(finding, potential_saving_s=finding.potential_saving_s * (explained + (1 - explained) * left))
    is_of_machine = finding.evidence.get("moves_with") == THE_MACHINE
    if is_of_machine and any(each.code == MACHINE_BUSY for each in others):
        return finding
    return finding if finding.potential_saving_s >= MIN_SAVING_S else None


@RULES.rule(
    "slower-since", 0.05, label="SLOWING DOWN", is_uneven=True, is_rise=True, rest=rest_of_rise
)  # of the step time before
def slower_since(snapshot: Snapshot, threshold: float) -> Finding | None:
    """Flag step times that rise by over 5 % from one step on, more as a jump than as a trend; None below 100 steps.

    Where steps do more from there on, ``steps-do-more`` says so.
    """
    change = abrupt_rise(snapshot, threshold)
    if change is None or snapshot.step is None or work_of(change) is not None:
        return None
    if names_growth(snapshot):
        return None
    rise = change.after_s / change.before_s - 1
    slow_steps = snapshot.step.count - change.step + 1
    potential_saving_s = min((change.after_s - change.before_s) * slow_steps, snapshot.step.settled_s)
    if potential_saving_s < MIN_SAVING_S:
        return None
    cause, reason = cause_of(change)
    count = snapshot.step.count
    where = less_at(snapshot, change, cause) or (record_steps(count, change.step // 2, (change.step + count) // 2),)
    if copied := copying_part(change):
        fix, potential_saving_s = COPIED, copied * potential_saving_s
    elif cause in OF_THE_MACHINE:
        fix = Fix(OF_THE_MACHINE[cause])
    elif cause:
        look = f"Look for what {name_of(cause)} does differently from there on"
        if cause == OTHER:
            look = "Look for code outside all sections that runs from there on: logging, a schedule, a list that grows"
        # A section may also rise alone because the machine is slower at what it does.
        is_certain = _line_that_rose(change, cause) is not None
        fix = Fix(look if is_certain else f"{look}; or for what slowed the machine then", (), where)
    else:
        fix = Fix(ALL_ALIKE) if reason else Fix(WHAT_BEGINS, (), where)
    evidence: dict[str, float | int | str] = {
        "rise": rise,
        "threshold": threshold,
        "step": change.step,
        "first_step": change.first_step,
        "last_step": change.last_step,
        "before_s": change.before_s,
        "after_s": change.after_s,
    }
    if cause:
        evidence["moves_with"] = cause
    return found(
        f"Steps take {rise:.0%} longer since {when_text(change)} ({time_text(change.before_s)} before, "
        f"{time_text(change.after_s)} after){reason}{_ranks_text(snapshot, change)}",
        evidence,
        fix,
        saving_s=potential_saving_s,
    )


def abrupt_rise(snapshot: Snapshot, threshold: float) -> StepChange | None:
    """Return the change from which on steps take longer by more than ``threshold``; None without one."""
    step = snapshot.step
    if step is None or step.change is None or step.settled_count < 100:  # as for a trend
        return None
    change = step.change
    is_rise = change.before_s > 0 and change.after_s / change.before_s - 1 > threshold
    return change if change.is_abrupt and is_rise else None


def when_text(change: StepChange | MemoryChange) -> str:
    """Return "step 400 (95%: 390 to 412)"."""
    interval = f"{change.first_step} to {change.last_step}"
    return f"step {change.step}" + ("" if change.first_step == change.last_step else f" (95%: {interval})")


def work_of(change: StepChange) -> tuple[str, float] | None:
    """Return what a step does more of since a change, and how many times; None if that does not explain its time.

    The time of a forward pass may rise with the square of its input, as in attention.
    """
    pairs = change.forward_passes, change.input_elements
    passes, elements = (pair[1] / pair[0] if pair is not None and pair[0] > 0 else 1.0 for pair in pairs)
    rise = change.after_s / change.before_s
    if elements > 1 + WORKS_MORE and rise <= (1 + WORKS_MORE) * passes * elements**2:
        return "input elements", passes * elements
    if passes > 1 + WORKS_MORE and rise <= (1 + WORKS_MORE) * passes:
        return "forward passes", passes
    return None


def cause_of(change: StepChange) -> tuple[str, str]:
    """Return what carries most of the added time, "" if nothing does or all parts rise alike, and a message on it."""
    added_s = change.after_s - change.before_s
    if added_s <= 0:  # the medians of two levels of a coarse clock may be the same
        return "", ""
    before, after = change.machine
    if before is not None and after is not None and min(before.samples, after.samples) >= SAMPLES_NEEDED:
        lost_before, lost = cpu_loss(before), cpu_loss(after)
        # The loss counts more than once: threads that have a CPU wait for those that have none.
        if EXPLAINS * (lost.to_others - lost_before.to_others) * change.after_s >= CARRIES * added_s:
            reason = f"{_MACHINE[lost.cause]} {lost.to_others:.0%} of the time, {lost_before.to_others:.0%} before"
            return THE_MACHINE, f"; since then {reason}"
    if slower := _slower_clock(change):
        return CLOCK, slower
    if alike := _alike(change):
        return "", alike
    added = {name: after - before for name, (before, after) in change.sections.items() if name != PROFILER}
    name = max(added, key=lambda name: added[name], default="")
    if not name or added[name] < CARRIES * added_s:
        return "", ""
    before_s, after_s = change.sections[name]
    part = min(1.0, added[name] / added_s)
    times = f"({time_text(before_s)} before step {change.step}, {time_text(after_s)} after)"
    line, text = _line_that_rose(change, name), ""
    if line is not None:
        called = f", in {line.called}()" if line.called else ""
        text = f", above all {line.line} ({time_text(line.before_s)} before, {time_text(line.after_s)} after{called})"
    where = "no section" if name == OTHER else name_of(name)
    return name, f"; {part:.0%} of the rise is in {where} {times}{text}"


def _alike(change: StepChange) -> str:
    """Return how a message says that all parts of a step rise by about as much; "" where they do not.

    What a step does more of is in one of them, or in few. A slower machine, such as one whose clock falls or whose host
    gives its cores to others, makes all of them longer, and so does a thread that the program starts.
    """
    least_rise = 0.5 * (change.after_s / change.before_s - 1)
    rises = {
        name: after_s / before_s - 1
        for name, (before_s, after_s) in change.sections.items()
        if name != PROFILER and before_s >= 0.02 * change.before_s  # with less it says little
    }
    if len(rises) < 4 or min(rises.values()) < least_rise:
        return ""
    texts = [f"{name_of(name)} by {rise:.0%}" for name, rise in sorted(rises.items(), key=lambda item: -item[1])]
    return (
        f"; all parts of a step alike ({', '.join(texts)}), as on a machine that has become slower, or beside another "
        "thread of the program"
    )


def _line_that_rose(change: StepChange, section: str) -> LineChange | None:
    """Return the line that carries most of what a section rose by; None where none does, or chance may explain it."""
    before_s, after_s = change.sections[section]
    for line in change.lines.get(section, ())[:1]:
        rise_s, error_s = line.after_s - line.before_s, 2 * line.after_s / line.samples**0.5  # standard errors
        if line.samples >= 10 and rise_s >= CARRIES * (after_s - before_s) and rise_s > error_s:
            return line
    return None


def less_at(snapshot: Snapshot, change: StepChange, section: str) -> tuple[Action, ...]:
    """Return the action at the line that carries a rise, or the two with most of its section; none in a library."""
    rose = _line_that_rose(change, section) if section in change.sections else None
    places = [] if rose is None else [rose.line]
    if rose is None and section in snapshot.sections:
        lines = snapshot.hottest(section, of_steps=True)[:2]
        if lines and sum(line.share for line in lines) >= MOST_OF_SECTION * snapshot.sections[section].share:
            places = [f"{line.place} {line.what}" for line in lines]
    inside = {f"{line.place} {line.what}" for line in snapshot.lines_of_steps(section) if line.inside}
    is_own = places and inside.isdisjoint(places)
    return (Action(f"do less at {' and '.join(places)}", (Change.CHEAPER_LINES,)),) if is_own else ()


def copying_part(change: StepChange) -> float:
    """Return the part of a rise of the line that puts tensors together, and so copies all so far; 0 without one."""
    section, _ = cause_of(change)
    line = _line_that_rose(change, section) if section in change.sections else None
    if line is None or line.called.rpartition(".")[2] not in PUT_TOGETHER:
        return 0.0
    return min(1.0, (line.after_s - line.before_s) / (change.after_s - change.before_s))


def _slower_clock(change: StepChange) -> str:
    """Return how a message says that the clock of a device fell, if that carries most of the added time; else ""."""
    before, after = change.machine
    if before is None or after is None or min(before.samples, after.samples) < SAMPLES_NEEDED:
        return ""
    earlier = {gpu.index: gpu for gpu in before.gpus}
    for gpu in after.gpus:
        was = earlier.get(gpu.index)
        if was is None or not (was.clock_mhz and gpu.clock_mhz and was.utilization and gpu.utilization):
            continue
        was_mhz, mhz = was.clock_mhz.mean, gpu.clock_mhz.mean
        is_busy = gpu.utilization.mean >= 0.9 * was.utilization.mean  # a device that waits lowers its clock, too
        is_slower = mhz and was_mhz / mhz - 1 >= max(0.05, CARRIES * (change.after_s / change.before_s - 1))
        if is_busy and is_slower:
            held = ", held down by heat" if gpu.throttled_heat is not None and gpu.throttled_heat.mean >= 0.1 else ""
            hot = held if gpu.temperature_c is None else f"{held}, at {gpu.temperature_c.max:.0f} degrees C"
            return f"; since then the clock of GPU {gpu.index} is {mhz:,.0f} MHz, {was_mhz:,.0f} MHz before{hot}"
    return ""


def _ranks_text(snapshot: Snapshot, change: StepChange) -> str:
    """Return which ranks work longer than the others since the change; "" where none does, as far as known."""
    if snapshot.ranks is None or snapshot.step is None:
        return ""
    about = snapshot.step.count / 8  # how exactly a rank knows since when its work takes longer
    slower = [
        str(rank.who.rank)
        for rank in snapshot.ranks.ranks
        if rank.slower_since_step is not None
        and change.first_step - about <= rank.slower_since_step <= change.last_step + about
    ]
    ranks = f"rank {slower[0]} works" if len(slower) == 1 else f"ranks {', '.join(slower)} work"
    return f"; {ranks} longer than the others since then" if slower else ""
