"""The rule about large tables of embeddings whose every row is updated in each step."""

from typing import Final

from training_profiler.base.units import ms_text
from training_profiler.diagnosis.registry import MIN_SAVING_S, RULES, has_enough_steps
from training_profiler.findings.finding import Finding
from training_profiler.snapshot.snapshot import Snapshot
from training_profiler.tables.sections import OPTIMIZER_STEP

DENSE_EMBEDDING: Final = "dense-embedding"
FEW_ROWS: Final = 0.2  # of a table; sparse updates of more would not be faster


@RULES.rule(DENSE_EMBEDDING, threshold=0.15)  # of step time
def dense_embedding(snapshot: Snapshot, threshold: float) -> Finding | None:
    """Flag a table of embeddings that takes most of the optimizer's time, although a step uses few of its rows.

    Dense gradients are made, and cleared, as well; that time is not known and not claimed.
    """
    step, table, optimizer_s = snapshot.step, snapshot.program.embedding, snapshot.total_of_step_s(OPTIMIZER_STEP)
    if step is None or table is None or not optimizer_s or not has_enough_steps(snapshot) or table.used > FEW_ROWS:
        return None
    potential_saving_s = (1 - table.used) * table.part * optimizer_s
    share = potential_saving_s / step.settled_s if step.settled_s else 0.0
    if share <= threshold or potential_saving_s < MIN_SAVING_S:
        return None
    return Finding(
        code=DENSE_EMBEDDING,
        message=f"The optimizer updates all {table.rows:,} rows of an {table.kind} in each step "
        f"({ms_text(potential_saving_s / step.settled_count)} per step), and a step uses {table.used:.1%} of them",
        evidence={
            "share_of_step": share,
            "threshold": threshold,
            "rows": table.rows,
            "used": table.used,
            "share_of_parameters": table.part,
        },
        potential_saving_s=potential_saving_s,
        fix=f"Pass sparse=True to {table.kind}, and its parameters to an optimizer for sparse gradients "
        "(torch.optim.SparseAdam, SGD, Adagrad): only the rows of a batch are then updated",
    )
