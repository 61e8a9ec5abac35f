"""Rules about how the program computes: small operators, precision, repeated work, recompilation."""

from collections.abc import Sequence
from typing import Final

from training_profiler.base.units import duration_text, ms_text, three_digits
from training_profiler.diagnosis.in_python import in_python
from training_profiler.diagnosis.loops import loops
from training_profiler.diagnosis.machine import cpu_loss
from training_profiler.diagnosis.parameter_loop import parameter_loop
from training_profiler.diagnosis.registry import MIN_SAVING_S, RULES, has_enough_steps
from training_profiler.diagnosis.time_steps import is_on_cpu, saved_by_whole_sequences, time_step_loop
from training_profiler.findings.finding import Finding
from training_profiler.findings.registry import Saving
from training_profiler.snapshot.lines import hottest_places
from training_profiler.snapshot.program import ForwardFacts, LongOperators, ProgramFacts
from training_profiler.snapshot.snapshot import OTHER, LineStats, Snapshot
from training_profiler.tables.sections import BACKWARD_PASS, FORWARD_PASS, OPTIMIZER_STEP

SMALL_OPERATORS: Final = "small-operators"
PYTHON_IN_FORWARD: Final = "python-in-forward"
DOUBLE_PRECISION: Final = "double-precision"
REPEATED_BACKWARD: Final = "repeated-backward"
RECOMPILES: Final = "recompiles"

# A layer with a weight and a bias takes about 3 operators forward and 9 backward.
OPERATORS_A_TENSOR: Final = 6
IN_FORWARD: Final = 0.25  # of these
OUTSIDE: Final = 5.0  # times the operators in modules; each has two or three in the backward pass
SAME: Final = 1.05  # times as many passes
MANY: Final = 2.0  # x that number; fewer may be normalization, attention and the loss
# From one operator to the next, with counting and the calls of modules between them; measured: 8 to 25 us.
BETWEEN_OPERATORS_S: Final = 40e-6
START_S: Final = 3e-6  # that starting an operator takes on a fast CPU, with its share of the backward pass
NEARLY_EMPTY: Final = 4.0  # x the time of the shortest operator; from there on operators compute for most of their time
MOST_OF_FORWARD: Final = 0.5
PART_OF_FORWARD: Final = 0.3
GOOD_PART: Final = 0.2
MOSTLY: Final = 0.5  # of a line's time in Python, with short operators
USUAL: Final = 1.1  # x the median forward pass; a longer one may have been delayed
SAMPLES_NEEDED: Final = 40  # of lines in the forward pass; the error of a part of 0.3 is then below 0.08
USED_EACH_UPDATE: Final = 0.9  # updates with such a backward pass
BETWEEN: Final = 0.5  # of the kept graphs; fewer are those of each step's last backward pass
RECOMPILED_OFTEN: Final = 2
TOO_BUSY: Final = 0.1  # of the run without a CPU; then how fast a model computes depends on what ran beside it

ADDED_LOSSES: Final = (
    "Add the losses and call backward() once: the gradients are the same but for rounding; keep several only where "
    "each loss needs gradients of its own"
)
SEPARATE_UPDATES: Final = (
    "Each loss has an update of its own: give it .detach() of what its optimizer does not train, such as the "
    "generator's output in the discriminator's loss, and leave retain_graph=True out"
)


@RULES.rule(SMALL_OPERATORS, threshold=0.25)  # of step time that fewer operators would save
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
    share = potential_saving_s / step.settled_s
    if share <= threshold or potential_saving_s < MIN_SAVING_S:
        return None
    return Finding(
        code=SMALL_OPERATORS,
        message=f"The model takes {operators} small operators a step, {_each(snapshot, operator_s)}: "
        f"mostly Python and torch between operators, not computing{_above_all(snapshot)}",
        evidence={
            "share_of_step": share,
            "threshold": threshold,
            "operators": operators,
            "seconds_per_operator": operator_s,
            "least_seconds_per_operator": start_s,
            "parameter_tensors": optimizer.tensors,
            **_line_of_most(snapshot),
        },
        potential_saving_s=potential_saving_s,
        fix=_fewer_operators(snapshot, program.forward),
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
        return {} if forward.layer else _most_of(loops(snapshot), snapshot)
    functions = [line.what for line in snapshot.lines.get(FORWARD_PASS, ()) if line.place == forward.place]
    return {"lines": " ".join([forward.place, *functions[:1]])}


def _mostly_in_python(snapshot: Snapshot) -> list[LineStats]:
    """Return the lines of forward passes that mostly run Python or other libraries."""
    lines = snapshot.lines_of_steps(FORWARD_PASS)
    shares = {(line.place, line.function): line.share for line in in_python(lines)}
    return [line for line in lines if shares.get((line.place, line.function), 0.0) >= MOSTLY * line.share > 0]


def _most_of(lines: Sequence[LineStats], snapshot: Snapshot) -> dict[str, str]:
    """Return the place with most of these lines' time, as evidence; empty where they have little time."""
    section = snapshot.sections.get(FORWARD_PASS)
    samples = sum(line.samples for line in snapshot.lines_of_steps(FORWARD_PASS))
    if section is None or samples < SAMPLES_NEEDED or sum(line.share for line in lines) < GOOD_PART * section.share:
        return {}
    places = [f"{place.place} {place.what}" for place in hottest_places(sorted(lines, key=lambda line: -line.share))]
    return {"lines": places[0]} if places else {}


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
    potential_saving_s = computing_s * (1 - needed / operators)
    share = potential_saving_s / step.settled_s
    if share <= threshold or potential_saving_s < MIN_SAVING_S:
        return None
    places = [f"{line.place} {line.what}" for line in snapshot.hottest(OTHER)]
    above_all = f"; above all in {places[0]}" if places else ""
    return Finding(
        code=SMALL_OPERATORS,
        message=f"Backward passes take {operators} small operators a step, "
        f"{_each(snapshot, operator_s)}, most of them of what is computed outside of modules, such as the "
        f"loss{above_all}",
        evidence={
            "share_of_step": share,
            "threshold": threshold,
            "operators": operators,
            "seconds_per_operator": operator_s,
            "least_seconds_per_operator": start_s,
            "outside_modules": 1,
            "lines": ", ".join(places),
        },
        potential_saving_s=potential_saving_s,
        fix=_fewer_operators(snapshot, None),
    )


def _fewer_operators(snapshot: Snapshot, forward: ForwardFacts | None) -> str:
    """Return what to change; in ``forward`` is torch's recurrent layer that starts the operators, if one does."""
    layer, recurrent = "" if forward is None else forward.layer, snapshot.program.recurrent
    if recurrent is not None and recurrent.loop >= MOST_OF_FORWARD and forward is not None:
        compiling = "" if snapshot.program.compiled is not None else "; torch.compile may fuse them"
        return (
            f"{recurrent.kind} is called for each step of a sequence, which is needed where an input depends on an "
            f"output before: with larger batches each operator does more{compiling}"
        )
    if layer:
        own = "" if layer == "LSTM" else "nn.LSTM has "
        return (
            f"torch computes this nn.{layer} step by step: on the CPU {own or 'there is '}one kernel for a whole "
            "sequence, in float32 or bfloat16, padded and not packed, without proj_size; with larger batches each "
            "operator does more"
        )
    fix = "Compute a whole batch or sequence at once instead of looping over it in Python; use torch's fused functions"
    if snapshot.program.compiled is not None:
        return fix
    return f"{fix}; torch.compile may fuse the rest"


@RULES.rule(PYTHON_IN_FORWARD, threshold=0.15)  # of step time
def python_in_forward(snapshot: Snapshot, threshold: float) -> Finding | None:
    """Flag a forward pass on the CPU of which a good part is in no operator of torch.

    None where operators were not counted, as in compiled code. Where they were too many to be counted, loops in Python
    that samples show count, with the short operators that they start.
    """
    program, step, outside = snapshot.program, snapshot.step, _outside_operators(snapshot)
    if not is_on_cpu(program):
        return None
    forward_s = snapshot.total_of_step_s(FORWARD_PASS)
    if step is None or not has_enough_steps(snapshot) or outside is None or not forward_s:
        return None
    seconds, part = outside
    potential_saving_s = min(forward_s, seconds)
    share = potential_saving_s / step.settled_s
    if part < PART_OF_FORWARD or share <= threshold or potential_saving_s < MIN_SAVING_S:
        return None
    lines = _most_of(loops(snapshot) if program.forward is None else _mostly_in_python(snapshot), snapshot)
    what = "is not in torch's operators, but in Python or in other libraries"
    if program.forward is None:
        what = f"is in loops of Python that start short operators, over {program.uncounted:,} in a step"
    return Finding(
        code=PYTHON_IN_FORWARD,
        message=f"{part:.0%} of the forward pass {what} ({ms_text(potential_saving_s / step.settled_count)} per step)"
        + "".join(f"; above all in {line}" for line in lines.values()),
        evidence={"share_of_step": share, "threshold": threshold, "share_of_forward": part, **lines},
        potential_saving_s=potential_saving_s,
        fix="Do this work once, ahead of time, or in the data set and its workers; or compute a whole batch at once "
        "with tensors",
    )


def _sampled_in_python(snapshot: Snapshot) -> float:
    """Return the part of the forward pass in loops and functions of Python, with short operators; 0 if unknown.

    Functions of libraries that do not compute with torch, and making tensors of lists, are such; see ``in_python``.
    """
    section, lines = snapshot.sections.get(FORWARD_PASS), snapshot.lines_of_steps(FORWARD_PASS)
    if section is None or not section.share or sum(line.samples for line in lines) < SAMPLES_NEEDED:
        return 0.0
    return min(1.0, sum(line.share for line in in_python(lines)) / section.share)


def _sampled_in_loops(snapshot: Snapshot) -> float:
    """Return the part of the forward pass in loops in Python, with operators that they start; 0 if unknown."""
    section, lines = snapshot.sections.get(FORWARD_PASS), snapshot.lines_of_steps(FORWARD_PASS)
    if section is None or not section.share or sum(line.samples for line in lines) < SAMPLES_NEEDED:
        return 0.0
    return min(1.0, sum(line.share for line in loops(snapshot)) / section.share)


def _outside_operators(snapshot: Snapshot) -> tuple[float, float] | None:
    """Return the time of forward passes that is surely in no operator, and its part of a step's; None if unknown.

    The counted step may have been delayed, by another program for example; the shortest forward pass was not. That may
    include operators between two modules, which are not counted; the calls of the counted step do not. What is between
    operators counts as theirs, unless samples of lines show loops in Python there. These are a part of all passes, of
    which the shortest may be a small batch, and count as far as a counted step of usual length has time for them.
    """
    counted, section, step = snapshot.program.forward, snapshot.sections.get(FORWARD_PASS), snapshot.step
    if section is None or not section.min_s or step is None:
        return None
    if counted is None:
        part = _sampled_in_loops(snapshot) if snapshot.program.uncounted else 0.0
        return (part * section.settled_total_s, part) if part else None
    least_s = min(counted.calls_s, section.min_s * per_step(snapshot, FORWARD_PASS))
    outside_s = max(0.0, least_s - counted.operators_s)
    if not least_s:
        return None
    between_s = BETWEEN_OPERATORS_S * counted.operators
    most = outside_s / least_s
    if counted.calls_s <= USUAL * (section.p50_s or 0.0) * per_step(snapshot, FORWARD_PASS):
        most = max(most, (counted.calls_s - counted.operators_s - between_s) / counted.calls_s)
    sampled = min(most, _sampled_in_python(snapshot))
    surely_s = max(0.0, outside_s - between_s)
    seconds = max(sampled * section.settled_total_s, surely_s * step.settled_count)
    return seconds, max(sampled, surely_s / least_s)


@RULES.rule(DOUBLE_PRECISION, threshold=0.10)  # of step time
def double_precision(snapshot: Snapshot, threshold: float) -> Finding | None:
    """Flag a model that computes mostly in float64; None where its data type is unknown."""
    rates, step = snapshot.throughput, snapshot.step
    if rates is None or rates.dtype != "float64" or step is None or not has_enough_steps(snapshot):
        return None
    computing_s = snapshot.computing_s() + (snapshot.total_of_step_s(OPTIMIZER_STEP) or 0.0)
    potential_saving_s = computing_s / 2  # half of the bytes, and twice the numbers in each instruction
    share = potential_saving_s / step.settled_s
    if share <= threshold or potential_saving_s < MIN_SAVING_S:
        return None
    return Finding(
        code=DOUBLE_PRECISION,
        message="The model computes in float64, which takes twice the time of float32 or more",
        evidence={"share_of_step": share, "threshold": threshold, "computing_s": computing_s},
        potential_saving_s=potential_saving_s,
        fix="If the results allow it, use float32: data from NumPy is float64 until .float(), and model.double() or "
        "torch.set_default_dtype make parameters so",
    )


@RULES.rule(REPEATED_BACKWARD, threshold=0.10)  # of step time
def repeated_backward(snapshot: Snapshot, threshold: float) -> Finding | None:
    """Flag updates with several backward passes through one graph; None unless each update has them."""
    step, passes = snapshot.step, per_step(snapshot, BACKWARD_PASS)
    if step is None or not has_enough_steps(snapshot) or passes < 1 + USED_EACH_UPDATE:
        return None
    if snapshot.program.kept_graphs < USED_EACH_UPDATE * step.count:
        return None
    backward_s = snapshot.total_of_step_s(BACKWARD_PASS) or 0.0
    kept = min(passes - 1, snapshot.program.kept_graphs / step.count)
    potential_saving_s = backward_s * kept / passes
    share = potential_saving_s / step.settled_s
    if share <= threshold or potential_saving_s < MIN_SAVING_S:
        return None
    keep = "keeps" if f"{kept:.2g}" == "1" else "keep"
    has_updates_between = _has_updates_between(snapshot, passes)
    because = " for the next, which repeats what they have in common"
    if has_updates_between:
        because = ", although an update comes before another backward pass"
    return Finding(
        code=REPEATED_BACKWARD,
        message=f"Each step has {passes:.2g} backward passes, {ms_text(backward_s / step.settled_count)} in all; "
        f"{kept:.2g} of them {keep} the graph{because}",
        evidence={
            "share_of_step": share,
            "threshold": threshold,
            "backward_passes": passes,
            "kept_graphs": snapshot.program.kept_graphs,
        },
        potential_saving_s=potential_saving_s,
        fix=SEPARATE_UPDATES if has_updates_between else ADDED_LOSSES,
    )


def _has_updates_between(snapshot: Snapshot, passes: float) -> bool:
    """Return whether losses have updates of their own, as in a GAN: then they must not be added."""
    program = snapshot.program
    if program.kept_past_updates > BETWEEN * program.kept_graphs:
        return True
    return per_step(snapshot, OPTIMIZER_STEP) >= USED_EACH_UPDATE * passes


@RULES.rule(RECOMPILES, threshold=0.03, saving=Saving.RUN)  # of the run
def recompiles(snapshot: Snapshot, threshold: float) -> Finding | None:
    """Flag torch.compile that compiled the same code again and again, for over 3 % of the run."""
    compiled = snapshot.program.compiled
    if compiled is None or not snapshot.wall_s or compiled.recompiled < RECOMPILED_OFTEN:
        return None
    share = compiled.recompiled_s / snapshot.wall_s
    if share <= threshold or compiled.recompiled_s < MIN_SAVING_S:
        return None
    where = f", mostly at {compiled.place}" if compiled.place else ""
    return Finding(
        code=RECOMPILES,
        message=f"torch.compile compiled code again {compiled.recompiled} times, for "
        f"{duration_text(compiled.recompiled_s)}{where} ({compiled.graphs} compilations, "
        f"{duration_text(compiled.seconds)} in all)",
        evidence={
            "share_of_run": share,
            "threshold": threshold,
            "recompiled": compiled.recompiled,
            "recompiled_s": compiled.recompiled_s,
            "compiled": compiled.graphs,
            "place": compiled.place,
        },
        potential_saving_s=compiled.recompiled_s,
        fix="TORCH_LOGS=recompiles prints what differs each time: pad batches to few shapes, drop_last=True, mark "
        "changing sizes with torch._dynamo.mark_dynamic or dynamic=True, and pass changing numbers as tensors",
    )


def compute_share(snapshot: Snapshot) -> float | None:
    """Return the FLOP/s of forward and backward passes over what this CPU can do; None if unknown.

    It is unknown on a busy machine: the CPU's speed was measured in a few milliseconds, which may have been quiet ones.
    """
    rates, cpu, step = snapshot.throughput, snapshot.program.cpu, snapshot.step
    if cpu_loss(snapshot.machine).all > TOO_BUSY:
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


def per_step(snapshot: Snapshot, name: str) -> float:
    """Return how often a section that lies in steps ran in each."""
    section, step = snapshot.sections.get(name), snapshot.step
    return 0.0 if section is None or step is None or not step.count else section.spans_in_steps / step.count
