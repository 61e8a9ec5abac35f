"""Rules about how the program computes: repeated work, recompilation, updates of whole tables."""

from typing import Final

from training_profiler.base.units import duration_text, ms_text, three_digits
from training_profiler.diagnosis.machine import cpu_loss
from training_profiler.diagnosis.registry import RULES, cost_of_run, cost_of_steps
from training_profiler.findings.finding import Finding, Fix
from training_profiler.findings.losses import Change
from training_profiler.findings.registry import Saving
from training_profiler.snapshot.program import COMPILE
from training_profiler.snapshot.snapshot import Snapshot
from training_profiler.tables.sections import BACKWARD_PASS, FORWARD_PASS, OPTIMIZER_STEP

FEW_ROWS: Final = 0.2  # of a table; sparse updates of more would not be faster
NEARLY_EMPTY: Final = 4.0  # x the time of the shortest operator; from there on operators compute for most of their time
USED_EACH_UPDATE: Final = 0.9  # updates with such a backward pass
BETWEEN: Final = 0.5  # of the kept graphs; fewer are those of each step's last backward pass
RECOMPILED_OFTEN: Final = 2
TOO_BUSY: Final = 0.1  # of the run without a CPU; then how fast a model computes depends on what ran beside it
ADDED_LOSSES: Final = Fix(
    "Add the losses and call backward() once: the gradients are the same but for rounding; keep several only where "
    "each loss needs gradients of its own",
    (Change.ONE_BACKWARD,),
)
SEPARATE_UPDATES: Final = Fix(
    "Each loss has an update of its own: give it .detach() of what its optimizer does not train, such as the "
    "generator's output in the discriminator's loss, and leave retain_graph=True out",
    (Change.DETACH,),
)


@RULES.rule(
    "dense-embedding",
    threshold=0.15,  # of step time
    claims=(OPTIMIZER_STEP,),
    is_cause=True,
    saves=(0.7, 1.3),
    changes=(Change.SPARSE_GRADIENTS,),
)
def dense_embedding(snapshot: Snapshot, threshold: float) -> Finding | None:
    """Flag a table of embeddings that takes most of the optimizer's time, although a step uses few of its rows.

    Dense gradients are made, and cleared, as well; that time is not known and not claimed.
    """
    table, optimizer_s = snapshot.program.embedding, snapshot.total_of_step_s(OPTIMIZER_STEP)
    if table is None or not optimizer_s or table.used > FEW_ROWS:
        return None
    cost = cost_of_steps(snapshot, threshold, (1 - table.used) * table.part * optimizer_s)
    if cost is None:
        return None
    return cost.finding(
        "dense-embedding",
        f"The optimizer updates all {table.rows:,} rows of an {table.kind} in each step ({cost.per_step} per step), "
        f"and a step uses {table.used:.1%} of them",
        f"Pass sparse=True to {table.kind}, and its parameters to an optimizer for sparse gradients "
        "(torch.optim.SparseAdam, SGD, Adagrad): only the rows of a batch are then updated",
        rows=table.rows,
        used=table.used,
        share_of_parameters=table.part,
    )


@RULES.rule("repeated-backward", 0.10, claims=(BACKWARD_PASS,), is_cause=True, saves=(0.0, 1.4))  # of step time
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
    if cost is None:
        return None
    keep = "keeps" if f"{kept:.2g}" == "1" else "keep"
    has_updates_between = _has_updates_between(snapshot, passes)
    fix = SEPARATE_UPDATES if has_updates_between else ADDED_LOSSES
    because = " for the next, which repeats what they have in common"
    if has_updates_between:
        because = ", although an update comes before another backward pass"
    return cost.finding(
        "repeated-backward",
        f"Each step has {passes:.2g} backward passes, {ms_text(backward_s / cost.steps)} in all; "
        f"{kept:.2g} of them {keep} the graph{because}",
        fix,
        backward_passes=passes,
        kept_graphs=snapshot.program.kept_graphs,
    )


def _has_updates_between(snapshot: Snapshot, passes: float) -> bool:
    """Return whether losses have updates of their own, as in a GAN: then they must not be added."""
    program = snapshot.program
    if program.kept_past_updates > BETWEEN * program.kept_graphs:
        return True
    return per_step(snapshot, OPTIMIZER_STEP) >= USED_EACH_UPDATE * passes


@RULES.rule(
    "recompiles",
    threshold=0.03,  # of the run
    saving=Saving.RUN,
    claims=(FORWARD_PASS, BACKWARD_PASS),
    is_cause=True,
    saves=(0.7, 1.2),
    changes=(Change.OTHER_BATCHES,),
    call=COMPILE,
    explains_idle=True,
    is_of_host=True,
)
def recompiles(snapshot: Snapshot, threshold: float) -> Finding | None:
    """Flag torch.compile that compiled the same code again and again, for over 3 % of the run."""
    compiled = snapshot.program.compiled
    if compiled is None or compiled.recompiled < RECOMPILED_OFTEN:
        return None
    cost = cost_of_run(snapshot, threshold, compiled.recompiled_s)
    if cost is None:
        return None
    where = f", mostly at {compiled.place}" if compiled.place else ""
    return cost.finding(
        "recompiles",
        f"torch.compile compiled code again {compiled.recompiled} times, for "
        f"{duration_text(compiled.recompiled_s)}{where} ({compiled.graphs} compilations, "
        f"{duration_text(compiled.seconds)} in all)",
        "TORCH_LOGS=recompiles prints what differs each time: pad batches to few shapes, drop_last=True, mark "
        "changing sizes with torch._dynamo.mark_dynamic or dynamic=True, and pass changing numbers as tensors",
        recompiled=compiled.recompiled,
        recompiled_s=compiled.recompiled_s,
        compiled=compiled.graphs,
        place=compiled.place,
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
