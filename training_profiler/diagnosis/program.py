"""Rules about how the program computes: repeated work, updates of whole tables, many small operators."""

from collections.abc import Sequence
from dataclasses import replace
from math import exp, inf, log
from typing import Final

from training_profiler.base.sections import (
    BACKWARD_PASS,
    CUSTOM_BACKWARD,
    FORWARD_HOOK,
    FORWARD_PASS,
    FORWARD_WITHOUT_GRAD,
    OPTIMIZER_STEP,
)
from training_profiler.base.units import ms_text, three_digits
from training_profiler.diagnosis.finding import Change, Finding, Fix
from training_profiler.diagnosis.machine import cpu_loss
from training_profiler.diagnosis.places import loops, place_of_most, places_named, places_text
from training_profiler.diagnosis.registry import RULES, cost_of_steps, has_enough_steps, per_step
from training_profiler.model.program import ForwardFacts, LongOperators, ProgramFacts, RecurrentFacts
from training_profiler.model.snapshot import OTHER, LineStats, Snapshot

NEARLY_EMPTY: Final = 4.0  # x the time of the shortest operator; from there on operators compute for most of their time
USED_EACH_UPDATE: Final = 0.9  # updates with such a backward pass
ADDED_LOSSES: Final = Fix(
    "Add the losses and call backward() once: the gradients are the same but for rounding; keep several only where "
    "each loss needs gradients of its own",
    (Change.ONE_BACKWARD,),
)
SEPARATE_UPDATES: Final = Fix(
    "Leave retain_graph=True out, and give each loss .detach() of what its optimizer does not train: each has an "
    "update of its own, and the generator's output need not keep its graph in the discriminator's loss",
    (Change.DETACH,),
)
IN_FORWARD: Final = 0.25  # of these
OUTSIDE: Final = 5.0  # times the operators in modules; each has two or three in the backward pass
SAME: Final = 1.05  # times as many passes
MANY: Final = 2.0  # x that number; fewer may be normalization, attention and the loss
IN_LOSS: Final = "outside of modules, as in the loss"
_SECTIONS: Final = ((FORWARD_PASS, BACKWARD_PASS), (OTHER, BACKWARD_PASS), (BACKWARD_PASS,))  # with such operators
START_S: Final = 3e-6  # that starting an operator takes on a fast CPU, with its share of the backward pass


@RULES.rule(
    "dense-embedding",
    threshold=0.15,  # of step time
    claims=(OPTIMIZER_STEP, BACKWARD_PASS),
    saves=(0.7, 1.2),
    changes=(Change.SPARSE_GRADIENTS,),
)
def dense_embedding(snapshot: Snapshot, threshold: float) -> Finding | None:
    """Flag a table of embeddings that takes most of the optimizer's time, although a step uses few of its rows.

    A backward pass makes a gradient of all rows as well.
    """
    table, optimizer_s = snapshot.program.embedding, snapshot.total_of_step_s(OPTIMIZER_STEP)
    if table is None or not optimizer_s or table.used > 0.2:  # sparse updates of more would not be faster
        return None
    step = snapshot.step
    made_s = 0.0 if step is None else table.gradient_s * step.settled_count  # other passes may not reach the table
    made_s = min(made_s, snapshot.total_of_step_s(BACKWARD_PASS) or 0.0)
    cost = cost_of_steps(snapshot, threshold, (1 - table.used) * (table.part * optimizer_s + made_s))
    return cost.finding(
        f"All {table.rows:,} rows of an {table.kind} have a gradient and an update in each step ({cost.per_step} per "
        f"step), and a step uses {table.used:.1%} of them",
        f"Pass sparse=True to {table.kind}, and its parameters to an optimizer for sparse gradients "
        "(torch.optim.SparseAdam, SGD, Adagrad): only the rows of a batch are then updated",
        rows=table.rows,
        used=table.used,
        share_of_parameters=table.part,
    )


@RULES.rule("repeated-backward", 0.10, claims=(BACKWARD_PASS,), saves=(0.0, 1.4))  # of step time
def repeated_backward(snapshot: Snapshot, threshold: float) -> Finding | None:
    """Flag updates with several backward passes through one graph; None unless each update has them."""
    step, passes = snapshot.step, per_step(snapshot, BACKWARD_PASS)
    if step is None or passes < 1 + USED_EACH_UPDATE:
        return None
    if snapshot.program.kept_graphs < USED_EACH_UPDATE * step.count:
        return None
    backward_s = snapshot.total_of_step_s(BACKWARD_PASS) or 0.0
    kept = min(passes - 1, snapshot.program.kept_graphs / step.count)
    cost = cost_of_steps(snapshot, threshold, backward_s * kept / passes)
    keep = "keeps" if f"{kept:.2g}" == "1" else "keep"
    fix, because = ADDED_LOSSES, " for the next, which repeats what they have in common"
    # Losses with updates of their own, as in a GAN, must not be added.
    # Fewer are those of each step's last backward pass.
    has_updates_between = snapshot.program.kept_past_updates > 0.5 * snapshot.program.kept_graphs
    if has_updates_between or per_step(snapshot, OPTIMIZER_STEP) >= USED_EACH_UPDATE * passes:
        fix, because = SEPARATE_UPDATES, ", although an update comes before another backward pass"
    return cost.finding(
        f"Each step has {passes:.2g} backward passes, {ms_text(backward_s / cost.steps)} in all; "
        f"{kept:.2g} of them {keep} the graph{because}",
        fix,
        backward_passes=passes,
        kept_graphs=snapshot.program.kept_graphs,
    )


def compute_share(snapshot: Snapshot) -> float | None:
    """Return the FLOP/s of forward and backward passes over what this CPU can do; None if unknown.

    It is unknown on a busy machine: the CPU's speed was measured in a few milliseconds, which may have been quiet ones.
    """
    rates, cpu, step = snapshot.throughput, snapshot.program.cpu, snapshot.step
    if cpu_loss(snapshot.machine).all > 0.1:  # then how fast a model computes depends on what ran beside it
        return None
    if rates is None or rates.flops_per_step is None or cpu is None or step is None or cpu.dtype != rates.dtype:
        return None
    computing_s = snapshot.computing_s() / step.settled_count if step.settled_count else 0.0
    return min(1.0, rates.flops_per_step / computing_s / (cpu.gflops * 1e9)) if computing_s and cpu.gflops else None


def compute_text(snapshot: Snapshot, share: float) -> str:
    """Return how fast the model computes beside what this CPU can do."""
    cpu = snapshot.program.cpu
    assert cpu is not None
    return f"{share:.0%} of the {three_digits(cpu.gflops)} GFLOP/s that this CPU does in {cpu.dtype}"


@RULES.rule(
    "parameter-loop",
    threshold=0.10,  # of step time
    claims=(OTHER, BACKWARD_PASS),
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
    if outside.of_parameters < max(8, 0.5 * optimizer.tensors):
        return None  # of fewer tensors a loop is short, and may be a layer
    if snapshot.is_by_device(BACKWARD_PASS):
        return None
    backward_s = outside.seconds / outside.all_s * (snapshot.total_of_step_s(BACKWARD_PASS) or 0.0)
    forward_s = min(backward_s, snapshot.total_of_step_s(OTHER) or 0.0)
    cost = cost_of_steps(snapshot, threshold, backward_s + forward_s)
    places = snapshot.hottest(OTHER, of_steps=True)[:1]
    lines = places_text(places, snapshot.sections[OTHER].share) if places and OTHER in snapshot.sections else ""
    return cost.finding(
        f"The loss is computed from parameters one by one, as a penalty is: {outside.of_parameters} operations a "
        f"step, which take about {cost.share:.0%} of step time with their part of the backward pass ({cost.per_step} "
        "per step)" + (f"; unattributed time is above all in {lines}" if lines else ""),
        "Use the optimizer's weight_decay for the sum of squares; otherwise compute it from all parameters at once "
        "(torch._foreach_norm, torch._foreach_mul)",
        operations=outside.of_parameters,
        backward_s=backward_s,
        lines=lines,
    )


# Of a layer's time with a call for each step, what one call for all takes, forward and backward, of little and of much
# work. Measured with one thread on a CPU, as CPU time of ten sizes; between them it grows with a power of the work.
WHOLE_SEQUENCE_TAKES: Final = {
    "LSTM": (0.08, 0.5),
    "GRU": (0.55, 0.93),
    "RNN": (0.38, 0.9),
    "LSTMCell": (0.13, 0.45),
    "GRUCell": (1.0, 1.0),
    "RNNCell": (0.6, 1.0),
}
AROUND_TAKES: Final = (0.2, 0.55)  # what is around the layer: nn.Embedding and nn.Linear
LITTLE, MUCH = 30_000, 1_000_000  # products of a step in one gate; with fewer, operators take as long to start


def saved_by_whole_sequences(facts: RecurrentFacts | None) -> float:
    """Return the part of forward and backward passes that one call of a recurrent layer for all steps saves."""
    if facts is None or not facts.is_known:
        return 0.0
    much = min(1.0, max(0.0, log(max(1, facts.work) / LITTLE) / log(MUCH / LITTLE)))
    both = (WHOLE_SEQUENCE_TAKES.get(facts.kind, (1.0, 1.0)), AROUND_TAKES)
    taken, around = (of_little * exp(much * log(of_much / of_little)) for of_little, of_much in both)
    return facts.part * (1 - taken) + max(0.0, facts.loop - facts.part) * (1 - around)


def is_on_cpu(program: ProgramFacts) -> bool:
    """Return whether modules are computed on the CPU, operator by operator."""
    return program.optimizer is not None and program.optimizer.devices == ("cpu",) and program.compiled is None


@RULES.rule(
    "time-step-loop",
    threshold=0.10,  # of step time
    claims=(FORWARD_PASS, BACKWARD_PASS),
    saves=(0.5, 1.3),
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
    at = f" ({facts.place})" if facts.place else ""
    layer = facts.kind.removesuffix("Cell")
    how = f"Let {layer}" if layer == facts.kind else f"Use {layer} instead of {facts.kind} and let it"
    return cost.finding(
        f"{facts.kind}{at} is called {facts.calls:.0f} times a step, for one step of a sequence each, though "
        f"no input depends on its output: the loop takes {facts.loop:.0%} of the forward pass "
        f"({ms_text(facts.loop * computing_s / cost.steps)} with its part of the backward pass)",
        f"{how} compute a whole batch or sequence at once, and the layers before and after it as well",
        calls=facts.calls,
        part_of_forward=facts.part,
        loop_of_forward=facts.loop,
        lines=facts.place,
    )


@RULES.rule(
    "computed-weights",
    threshold=0.05,  # of step time
    label="COMPUTED AGAIN",
    claims=(FORWARD_PASS, BACKWARD_PASS),
    saves=(0.6, 1.2),
    changes=(Change.CACHED_WEIGHTS,),
    explains_idle=True,
)
def computed_weights(snapshot: Snapshot, threshold: float) -> Finding | None:
    """Flag weights whose parametrization is computed at each use, though once for a backward pass would do."""
    facts = snapshot.program.weights
    if facts is None:
        return None
    forward_s, backward_s = (snapshot.total_of_step_s(name) or 0.0 for name in (FORWARD_PASS, BACKWARD_PASS))
    cost = cost_of_steps(snapshot, threshold, facts.part * forward_s + facts.part_of_backward * backward_s)
    what = f"{facts.name} is" if facts.weights == 1 else f"{facts.weights} weights, such as {facts.name}, are"
    at = f" ({facts.place})" if facts.place else ""
    return cost.finding(
        f"{what} computed {facts.calls:.3g} times a step from the same parameters{at}: each use computes its "
        f"parametrization, which takes {cost.per_step} per step after the first",
        "with torch.nn.utils.parametrize.cached(): around the forward pass and its loss",
        calls=facts.calls,
        part_of_forward=facts.part,
        part_of_backward=facts.part_of_backward,
        lines=facts.place,
    )


@RULES.rule(
    "computed-constants",
    threshold=0.05,  # of step time
    label="COMPUTED AGAIN",
    claims=lambda finding: (str(finding.evidence["section"]),),
    saves=(0.7, 1.1),
    changes=(Change.COMPUTED_ONCE,),
    explains_idle=True,
)
def computed_constants(snapshot: Snapshot, threshold: float) -> Finding | None:
    """Flag lines that compute the same in each forward pass from unchanged input, such as masks and positions.

    Their time is that of their samples. None where the device takes the time of forward passes.
    """
    if not snapshot.program.constants or snapshot.is_by_device(FORWARD_PASS):
        return None
    whole = {(line.file, line.function) for line in snapshot.program.constants if line.is_whole}
    parts = {(line.file, line.line): line.part for line in snapshot.program.constants}
    found = [
        (name, replace(line, share=part * line.share, samples=round(part * line.samples)))
        for name in (FORWARD_PASS, FORWARD_WITHOUT_GRAD, OTHER)
        for line in snapshot.lines_of_steps(name)
        if not line.inside and (part := 1.0 if _function(line) in whole else parts.get((line.file, line.line), 0.0))
    ]
    found.sort(key=lambda each: -each[1].share)
    share, lines = sum(line.share for _, line in found), [line for _, line in found]
    of_section = ((line.share / snapshot.sections[name].share, snapshot.total_of_step_s(name)) for name, line in found)
    cost = cost_of_steps(snapshot, threshold, sum(part * (section_s or 0.0) for part, section_s in of_section))
    if sum(line.samples for line in lines) < 10:  # fewer may be chance
        return None
    section, hottest = found[0]
    its_lines = [each for each in snapshot.program.constants if (each.file, each.function) == _function(hottest)]
    times = min((each.times for each in its_lines), default=1)
    text = places_text(places_named(lines, share), share)
    keep = 'self.register_buffer("...", ..., persistent=False) in __init__' if section != OTHER else "before the loop"
    return cost.finding(
        f"The same is computed {'again' if times == 1 else f'{times} times'} in each step, from unchanged input "
        f"({cost.per_step} per step): {text}",
        f"Compute it once, {keep}; where lengths vary, for the longest, and take a part of it",
        times=times,
        section=section,
        lines=text,
    )


def _function(line: LineStats) -> tuple[str, str]:
    return line.file, line.function.partition(".<locals>.<")[0]  # that a comprehension is in


@RULES.rule(
    "small-operators",
    threshold=0.25,  # of step time that fewer operators would save
    claims=lambda finding: _SECTIONS[int(finding.evidence.get("outside_modules", 0))],
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
    program, step, optimizer = snapshot.program, snapshot.step, snapshot.program.optimizer
    if optimizer is None or program.finds_anomalies or step is None or not has_enough_steps(snapshot):
        return None
    start_s = START_S * (optimizer.devices == ("cpu",)) if program.cpu is None else program.cpu.operator_s
    if not start_s:
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
    # A layer with a weight and a bias takes about 3 operators forward and 9 backward.
    needed = 6 * optimizer.tensors * max(1.0, per_step(snapshot, FORWARD_PASS))
    if _is_outside_modules(snapshot):
        if parameter_loop(snapshot, snapshot.thresholds) is not None:
            return None
        return _small_operators_outside(snapshot, threshold, needed, start_s)
    # Operators seem longer where the training waits for a CPU.
    operator_s = computing_s * max(0.0, 1 - cpu_loss(snapshot.machine).all) / operators
    if operators <= MANY * needed or operator_s > NEARLY_EMPTY * start_s:
        return None
    causes = time_step_loop, computed_weights, computed_constants
    if any(rule(snapshot, snapshot.thresholds) is not None for rule in causes) or _are_of_hooks(snapshot):
        return None
    all_needless_s, known = computing_s * (1 - needed / operators), program.forward is not None
    potential_saving_s = step.settled_count * (_needless_s(program, passes_s, needed) if known else all_needless_s)
    recurrent = program.recurrent
    if recurrent is not None and recurrent.is_known:  # its operators stay, but for those that are known to be saved
        kept = max(0.0, recurrent.loop - saved_by_whole_sequences(recurrent))
        potential_saving_s = min(potential_saving_s, computing_s * (1 - kept) * step.settled_count)
    cost, lines = cost_of_steps(snapshot, threshold, potential_saving_s), _line_of_most(snapshot)
    above_all = "".join(f"; above all in {line}" for line in lines.values())
    return cost.finding(
        f"The model takes {operators} small operators a step, {_each(snapshot, operator_s)}: "
        f"mostly Python and torch between operators, not computing{above_all}",
        _fewer_operators(snapshot, program.forward),
        operators=operators,
        seconds_per_operator=operator_s,
        least_seconds_per_operator=start_s,
        parameter_tensors=optimizer.tensors,
        **lines,
    )


def _are_of_hooks(snapshot: Snapshot) -> bool:
    """Return whether hooks take a quarter of the forward passes or more, so that many operators are theirs."""
    forward_s = snapshot.total_of_step_s(FORWARD_PASS) or 0.0
    return 4 * snapshot.share_of_phase(FORWARD_HOOK) * snapshot.wall_s > forward_s > 0


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
    """Return the time of passes in no long operator; the step in which these were timed may have been a slower one."""
    by_part = seconds * long.seconds / long.all_s if long.all_s else long.seconds
    return max(0.0, seconds - min(long.seconds, by_part))


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
    if forward is None or not forward.place:
        return {} if forward is None or forward.layer else place_of_most(loops(snapshot), snapshot)
    functions = [line.what for line in snapshot.lines.get(FORWARD_PASS, ()) if line.place == forward.place]
    return {"lines": " ".join([forward.place, *functions[:1]])}


def _is_outside_modules(snapshot: Snapshot) -> bool:
    """Return whether backward passes have far more operators than modules called, as of a loop in the loss."""
    forward = snapshot.program.forward
    if forward is None or not forward.operators or snapshot.program.kept_graphs:
        return False
    if per_step(snapshot, BACKWARD_PASS) > SAME * per_step(snapshot, FORWARD_PASS):  # as of a penalty, or a Jacobian
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
    operator_s = backward_s * max(0.0, 1 - cpu_loss(snapshot.machine).all) / step.settled_count / operators
    if operators <= MANY * needed or operator_s > NEARLY_EMPTY * start_s:
        return None
    # What a loss computes outside of modules takes about as long as its backward pass; the rest may be anything.
    other_s, where, lines = min(backward_s, snapshot.total_of_step_s(OTHER) or 0.0), IN_LOSS, snapshot.hottest(OTHER)
    whole = snapshot.sections[BACKWARD_PASS].share or inf
    own = [line for line in snapshot.lines_of_steps(BACKWARD_PASS) if line.phase == CUSTOM_BACKWARD]
    if is_own := (part := min(1.0, sum(line.share for line in own) / whole)) >= 0.5:
        other_s, where, lines = (part - 1) * backward_s, "in own autograd functions", places_named(own, whole)
    cost = cost_of_steps(snapshot, threshold, (backward_s + other_s) * (1 - needed / operators))
    places = [f"{line.place} {line.what}" for line in lines]
    where += f"; above all in {places[0]}" if places else ""
    return cost.finding(
        f"Backward passes take {operators} small operators a step, {_each(snapshot, operator_s)}, most of them {where}",
        _fewer_operators(snapshot, None),
        operators=operators,
        seconds_per_operator=operator_s,
        least_seconds_per_operator=start_s,
        outside_modules=1 + is_own,
        lines=", ".join(places),
    )


def _fewer_operators(snapshot: Snapshot, forward: ForwardFacts | None) -> Fix:
    """Return what to change; in ``forward`` is torch's recurrent layer that starts the operators, if one does."""
    is_compiled = snapshot.program.compiled is not None
    layer, recurrent = "" if forward is None else forward.layer, snapshot.program.recurrent
    if recurrent is not None and forward is not None and (layer or recurrent.loop >= 0.5):
        return Fix(
            f"Use larger batches{'' if is_compiled else ', or torch.compile'}: {recurrent.kind} is called for each "
            "step of a sequence, which is needed where an input depends on an output before",
            (Change.OTHER_BATCHES,) if is_compiled else (Change.OTHER_BATCHES, Change.COMPILE),
        )
    if layer:
        what = "Give nn.LSTM" if layer == "LSTM" else "Use nn.LSTM with"
        return Fix(
            f"{what} padded sequences in float32 or bfloat16, not packed, without proj_size: for these the CPU has one "
            f"kernel for a whole sequence, and torch computes this nn.{layer} step by step; or use larger batches",
            (Change.OTHER_MODEL, Change.OTHER_BATCHES),
        )
    fix = "Compute a whole batch or sequence at once instead of looping over it in Python; use torch's fused functions"
    if is_compiled:
        return Fix(fix, (Change.WHOLE_TENSORS, Change.FUSED))
    return Fix(f"{fix}; torch.compile may fuse the rest", (Change.WHOLE_TENSORS, Change.FUSED, Change.COMPILE))
