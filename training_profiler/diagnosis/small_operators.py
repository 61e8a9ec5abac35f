"""Rules about many small operators: of loops over time steps, parameters or samples."""

from collections.abc import Sequence
from typing import Final, NamedTuple

from training_profiler.base.units import ms_text
from training_profiler.diagnosis.in_python import loops, place_of_most
from training_profiler.diagnosis.machine import cpu_loss
from training_profiler.diagnosis.places import places_text
from training_profiler.diagnosis.program import NEARLY_EMPTY, per_step
from training_profiler.diagnosis.registry import RULES, cost_of_steps, has_enough_steps
from training_profiler.findings.finding import Finding, Fix
from training_profiler.findings.losses import Change
from training_profiler.snapshot.program import ForwardFacts, LongOperators, ProgramFacts, RecurrentFacts
from training_profiler.snapshot.snapshot import OTHER, Snapshot
from training_profiler.tables.sections import BACKWARD_PASS, FORWARD_PASS

LEAST_OPERATIONS: Final = 8  # operations a step; of fewer tensors a loop is short
MOST_TENSORS: Final = 0.5  # of the optimizer's: with fewer it may be a layer
CELL: Final = "Cell"
SMALL_WORK: Final = 100_000  # products of a step in one gate; with fewer, starting operators takes most of the time
# A layer with a weight and a bias takes about 3 operators forward and 9 backward.
OPERATORS_A_TENSOR: Final = 6
IN_FORWARD: Final = 0.25  # of these
OUTSIDE: Final = 5.0  # times the operators in modules; each has two or three in the backward pass
SAME: Final = 1.05  # times as many passes
MANY: Final = 2.0  # x that number; fewer may be normalization, attention and the loss
START_S: Final = 3e-6  # that starting an operator takes on a fast CPU, with its share of the backward pass
MOST_OF_FORWARD: Final = 0.5


@RULES.rule(
    "parameter-loop",
    threshold=0.10,  # of step time
    claims=(OTHER, BACKWARD_PASS),
    is_cause=True,
    saves=(0.4, 1.2),
    changes=(Change.FOREACH, Change.WEIGHT_DECAY),
    explains_idle=True,
)
def parameter_loop(snapshot: Snapshot, threshold: float) -> Finding | None:
    """Flag losses with operations on most parameters, one by one, that take over 10 % of step time.

    Their part of the backward pass is that of the counted step, and they take as much unattributed time at most. None
    where operators were not counted, and where no module computes the forward pass.
    """
    outside, optimizer = snapshot.program.outside, snapshot.program.optimizer
    if optimizer is None or not outside.all_s or not snapshot.total_of_step_s(FORWARD_PASS):
        return None
    is_of_few = outside.of_parameters < max(LEAST_OPERATIONS, MOST_TENSORS * optimizer.tensors)
    if is_of_few or snapshot.is_by_device(BACKWARD_PASS):
        return None
    backward_s = outside.seconds / outside.all_s * (snapshot.total_of_step_s(BACKWARD_PASS) or 0.0)
    forward_s = min(backward_s, snapshot.total_of_step_s(OTHER) or 0.0)
    cost = cost_of_steps(snapshot, threshold, backward_s + forward_s)
    if cost is None:
        return None
    places = snapshot.hottest(OTHER, of_steps=True)
    other = snapshot.sections.get(OTHER)
    lines = "" if other is None or not places else places_text(places[:1], other.share)
    return cost.finding(
        "parameter-loop",
        f"The loss is computed of parameters one by one, as a penalty is: {outside.of_parameters} operations a "
        f"step, which take about {cost.share:.0%} of step time with their part of the backward pass ({cost.per_step} "
        "per step)" + (f"; unattributed time is above all in {lines}" if lines else ""),
        "Use weight_decay of the optimizer for the sum of squares; otherwise compute it of all parameters at once "
        "(torch._foreach_norm, torch._foreach_mul)",
        operations=outside.of_parameters,
        backward_s=backward_s,
        lines=lines,
    )


class _Takes(NamedTuple):
    """Of a layer's time with a call for each step, what one call for all takes, forward and backward.

    Medians of one thread on a CPU: three sizes of little work, five of much.
    """

    little: float
    much: float


WHOLE_SEQUENCE_TAKES: Final = {
    "LSTM": _Takes(0.1, 0.5),
    "GRU": _Takes(0.75, 0.75),
    "RNN": _Takes(0.3, 0.7),
    "LSTMCell": _Takes(0.12, 0.8),
    "GRUCell": _Takes(1.0, 0.9),
    "RNNCell": _Takes(0.5, 0.85),
}
AROUND_TAKES: Final = _Takes(0.15, 0.45)  # what is around the layer: nn.Embedding and nn.Linear


def saved_by_whole_sequences(facts: RecurrentFacts | None) -> float:
    """Return the part of forward and backward passes that one call of a recurrent layer for all steps saves."""
    if facts is None or not facts.is_known:
        return 0.0
    takes = WHOLE_SEQUENCE_TAKES.get(facts.kind, _Takes(1.0, 1.0))
    is_little = facts.work < SMALL_WORK
    taken, around = ((each.little if is_little else each.much) for each in (takes, AROUND_TAKES))
    return facts.part * (1 - taken) + max(0.0, facts.loop - facts.part) * (1 - around)


def is_on_cpu(program: ProgramFacts) -> bool:
    """Return whether modules are computed on the CPU, operator by operator."""
    return program.optimizer is not None and program.optimizer.devices == ("cpu",) and program.compiled is None


@RULES.rule(
    "time-step-loop",
    threshold=0.10,  # of step time
    claims=(FORWARD_PASS, BACKWARD_PASS),
    is_cause=True,
    saves=(0.4, 1.5),
    changes=(Change.WHOLE_TENSORS,),
    explains_idle=True,
)
def time_step_loop(snapshot: Snapshot, threshold: float) -> Finding | None:
    """Flag a recurrent layer or cell with a call for each step of a sequence, where all inputs are known before.

    On the CPU only. None where an input may depend on an output of the layer, as in attention over its state, or where
    the state is changed between two steps.
    """
    facts, computing_s = snapshot.program.recurrent, snapshot.computing_s()
    if facts is None or not is_on_cpu(snapshot.program):
        return None
    cost = cost_of_steps(snapshot, threshold, computing_s * saved_by_whole_sequences(facts))
    if cost is None:
        return None
    at = f" ({facts.place})" if facts.place else ""
    layer = facts.kind.removesuffix(CELL)
    how = f"Let {layer}" if layer == facts.kind else f"Use {layer} instead of {facts.kind} and let it"
    return cost.finding(
        "time-step-loop",
        f"{facts.kind}{at} is called {facts.calls:.0f} times a step, for one step of a sequence each, though "
        f"no input depends on its output: the loop takes {facts.loop:.0%} of the forward pass "
        f"({ms_text(facts.loop * computing_s / cost.steps)} with its part of the backward pass)",
        f"{how} compute a whole batch or sequence at once, and the layers around it as well: those that give its "
        "input before, those that take its output after",
        calls=facts.calls,
        part_of_forward=facts.part,
        loop_of_forward=facts.loop,
        lines=facts.place,
    )


def _sections_of(finding: Finding) -> tuple[str, ...]:
    return (OTHER, BACKWARD_PASS) if "outside_modules" in finding.evidence else (FORWARD_PASS, BACKWARD_PASS)


@RULES.rule(
    "small-operators",
    threshold=0.25,  # of step time that fewer operators would save
    claims=_sections_of,
    is_cause=True,
    saves=(0.5, 1.1),
    try_=("compile", "num_threads", "gc_freeze"),
    explains_idle=True,
)
def small_operators(snapshot: Snapshot, threshold: float) -> Finding | None:
    """Flag a model on the CPU whose time goes into starting operators, of which it has far more than its layers need.

    None where operators take longer than starting one does, and where there are few: then nothing is known to be
    removable. None with anomaly detection, which starts several for each gradient. In a run that was too short to
    measure the CPU, starting one takes as long as on a fast CPU.
    """
    program, step = snapshot.program, snapshot.step
    optimizer, start_s = program.optimizer, _start_s(snapshot)
    if optimizer is None or start_s is None or step is None or not has_enough_steps(snapshot):
        return None
    if program.finds_anomalies:
        return None
    # Long operators compute, and would go on to do so.
    operators = program.operators - program.long_forward.operators - program.long_backward.operators
    passes_s = [
        _without_long((snapshot.total_of_step_s(name) or 0.0) / step.settled_count, long)
        for name, long in ((FORWARD_PASS, program.long_forward), (BACKWARD_PASS, program.long_backward))
    ]
    computing_s = sum(passes_s)
    if operators <= 0 or computing_s <= 0 or not optimizer.tensors:
        return None
    needed = OPERATORS_A_TENSOR * optimizer.tensors * max(1.0, per_step(snapshot, FORWARD_PASS))
    if _is_outside_modules(snapshot):
        if parameter_loop(snapshot, snapshot.thresholds) is not None:
            return None
        return _small_operators_outside(snapshot, threshold, needed, start_s)
    operator_s = computing_s * _with_a_cpu(snapshot) / operators
    if operators <= MANY * needed or operator_s > NEARLY_EMPTY * start_s:
        return None
    if time_step_loop(snapshot, snapshot.thresholds) is not None:
        return None
    potential_saving_s = computing_s * (1 - needed / operators) * step.settled_count
    if program.forward is not None:
        potential_saving_s = _needless_s(program, passes_s, needed) * step.settled_count
    recurrent = program.recurrent
    if recurrent is not None and recurrent.is_known:  # its operators stay, but for those that are known to be saved
        kept = max(0.0, recurrent.loop - saved_by_whole_sequences(recurrent))
        potential_saving_s = min(potential_saving_s, computing_s * (1 - kept) * step.settled_count)
    cost = cost_of_steps(snapshot, threshold, potential_saving_s)
    if cost is None:
        return None
    return cost.finding(
        "small-operators",
        f"The model takes {operators} small operators a step, {_each(snapshot, operator_s)}: "
        f"mostly Python and torch between operators, not computing{_above_all(snapshot)}",
        _fewer_operators(snapshot, program.forward),
        operators=operators,
        seconds_per_operator=operator_s,
        least_seconds_per_operator=start_s,
        parameter_tensors=optimizer.tensors,
        **_line_of_most(snapshot),
    )


def _needless_s(program: ProgramFacts, passes_s: Sequence[float], needed: float) -> float:
    """Return what the operators take in a step that layers do not need, by pass: constants have no backward pass."""
    assert program.forward is not None
    forward = program.forward.operators - program.long_forward.operators
    backward = program.operators - program.forward.operators - program.long_backward.operators
    parts = (needed * IN_FORWARD, forward), (needed * (1 - IN_FORWARD), backward)
    return sum(
        seconds * max(0.0, 1 - its_needed / operators)
        for seconds, (its_needed, operators) in zip(passes_s, parts, strict=True)
        if operators > 0
    )


def _without_long(seconds: float, long: LongOperators) -> float:
    """Return the time of a step's passes that is in no long operator.

    The one step in which these were timed may have been slower than others, as an early one; so may all of it.
    """
    by_part = seconds * long.seconds / long.all_s if long.all_s else long.seconds
    return max(0.0, seconds - min(long.seconds, by_part))


def _start_s(snapshot: Snapshot) -> float | None:
    """Return how long starting an operator takes on the CPU; None for other devices."""
    cpu, optimizer = snapshot.program.cpu, snapshot.program.optimizer
    if cpu is not None:
        return cpu.operator_s or None
    return START_S if optimizer is not None and optimizer.devices == ("cpu",) else None


def _with_a_cpu(snapshot: Snapshot) -> float:
    """Return the part of the time in which the training did not wait for a CPU: operators seem longer on a busy one."""
    return max(0.0, 1 - cpu_loss(snapshot.machine).all)


def _each(snapshot: Snapshot, operator_s: float) -> str:
    """Return how long each takes, beside the shortest one here: those of a backward pass may be shorter."""
    cpu, each = snapshot.program.cpu, f"{operator_s * 1e6:.1f} us each"
    if cpu is None or cpu.operator_s > operator_s:
        return each
    return f"{each} (starting one takes {cpu.operator_s * 1e6:.1f} us here)"


def _line_of_most(snapshot: Snapshot) -> dict[str, str]:
    """Return the line that starts most operators, as evidence; empty where that is unknown.

    It need not be the one with most time, which may be in long operators. Where several lines start them, it is the
    loop in Python with most time, if such loops have a good part of the forward pass.
    """
    forward = snapshot.program.forward
    if forward is None:
        return {}
    if not forward.place:
        return {} if forward.layer else place_of_most(loops(snapshot), snapshot)
    functions = [line.what for line in snapshot.lines.get(FORWARD_PASS, ()) if line.place == forward.place]
    return {"lines": " ".join([forward.place, *functions[:1]])}


def _above_all(snapshot: Snapshot) -> str:
    return "".join(f"; above all in {line}" for line in _line_of_most(snapshot).values())


def _is_outside_modules(snapshot: Snapshot) -> bool:
    """Return whether backward passes have far more operators than modules called, as of a loop in the loss.

    So have several backward passes of one forward pass, such as a penalty's or a Jacobian's.
    """
    forward = snapshot.program.forward
    if forward is None or not forward.operators or snapshot.program.kept_graphs:
        return False
    if per_step(snapshot, BACKWARD_PASS) > SAME * per_step(snapshot, FORWARD_PASS):
        return False
    return snapshot.program.operators - forward.operators > OUTSIDE * forward.operators


def _small_operators_outside(snapshot: Snapshot, threshold: float, needed: float, start_s: float) -> Finding | None:
    """Return the finding about operators that are in no module: their time is unattributed, and in backward passes."""
    step, forward = snapshot.step, snapshot.program.forward
    assert step is not None
    assert forward is not None
    long = snapshot.program.long_backward
    operators = snapshot.program.operators - forward.operators - long.operators
    backward_s = (snapshot.total_of_step_s(BACKWARD_PASS) or 0.0) / step.settled_count
    backward_s = _without_long(backward_s, long) * step.settled_count
    if operators <= 0 or backward_s <= 0:
        return None
    operator_s = backward_s * _with_a_cpu(snapshot) / step.settled_count / operators
    if operators <= MANY * needed or operator_s > NEARLY_EMPTY * start_s:
        return None
    # What a loss computes outside of modules takes about as long as its backward pass; the rest may be anything.
    computing_s = backward_s + min(backward_s, snapshot.total_of_step_s(OTHER) or 0.0)
    cost = cost_of_steps(snapshot, threshold, computing_s * (1 - needed / operators))
    if cost is None:
        return None
    places = [f"{line.place} {line.what}" for line in snapshot.hottest(OTHER)]
    above_all = f"; above all in {places[0]}" if places else ""
    return cost.finding(
        "small-operators",
        f"Backward passes take {operators} small operators a step, {_each(snapshot, operator_s)}, most of them of what "
        f"is computed outside of modules, such as the loss{above_all}",
        _fewer_operators(snapshot, None),
        operators=operators,
        seconds_per_operator=operator_s,
        least_seconds_per_operator=start_s,
        outside_modules=1,
        lines=", ".join(places),
    )


def _fewer_operators(snapshot: Snapshot, forward: ForwardFacts | None) -> Fix:
    """Return what to change; in ``forward`` is torch's recurrent layer that starts the operators, if one does."""
    is_compiled = snapshot.program.compiled is not None
    layer, recurrent = "" if forward is None else forward.layer, snapshot.program.recurrent
    if recurrent is not None and recurrent.loop >= MOST_OF_FORWARD and forward is not None:
        compiling = "" if is_compiled else "; torch.compile may fuse them"
        return Fix(
            f"{recurrent.kind} is called for each step of a sequence, which is needed where an input depends on an "
            f"output before: with larger batches each operator does more{compiling}",
            (Change.OTHER_BATCHES,) if is_compiled else (Change.OTHER_BATCHES, Change.COMPILE),
        )
    if layer:
        own = "" if layer == "LSTM" else "nn.LSTM has "
        return Fix(
            f"torch computes this nn.{layer} step by step: on the CPU {own or 'there is '}one kernel for a whole "
            "sequence, in float32 or bfloat16, padded and not packed, without proj_size; with larger batches each "
            "operator does more",
            (Change.OTHER_MODEL, Change.OTHER_BATCHES),
        )
    fix = "Compute a whole batch or sequence at once instead of looping over it in Python; use torch's fused functions"
    if is_compiled:
        return Fix(fix, (Change.WHOLE_TENSORS, Change.FUSED))
    return Fix(f"{fix}; torch.compile may fuse the rest", (Change.WHOLE_TENSORS, Change.FUSED, Change.COMPILE))
