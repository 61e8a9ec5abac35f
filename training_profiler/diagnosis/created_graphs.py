"""The rule about gradients that get a graph of their own, for gradients of gradients that nothing computes."""

from typing import Final

from training_profiler.base.units import ms_text
from training_profiler.diagnosis.registry import MIN_SAVING_S, RULES, has_enough_steps
from training_profiler.findings.finding import Finding
from training_profiler.snapshot.snapshot import Snapshot
from training_profiler.tables.sections import BACKWARD_PASS

CREATED_GRAPHS: Final = "needless-create-graph"
NEARLY_ALL: Final = 0.9  # of the updates
# Of a backward pass; measured on the CPU for MLPs, a convolution and a transformer: 4 to 28 %.
RECORDING_COSTS: Final = 0.1


@RULES.rule(CREATED_GRAPHS, threshold=0.02)  # of step time
def created_graphs(snapshot: Snapshot, threshold: float) -> Finding | None:
    """Flag `create_graph=True` where no gradient is computed of these gradients before the next update.

    What recording costs is not measured in the run: the saving is that of a usual model.
    """
    step, count = snapshot.step, snapshot.program.created_graphs
    backward_s = snapshot.total_of_step_s(BACKWARD_PASS)
    if step is None or not has_enough_steps(snapshot) or not backward_s or not step.settled_s:
        return None
    if count < NEARLY_ALL * step.count:
        return None
    potential_saving_s = RECORDING_COSTS * backward_s
    share = potential_saving_s / step.settled_s
    if share <= threshold or potential_saving_s < MIN_SAVING_S:
        return None
    return Finding(
        code=CREATED_GRAPHS,
        message=f"Backward passes record a graph of the gradients (create_graph=True) that nothing uses, in "
        f"{count} of {step.count} steps ({ms_text(backward_s / step.settled_count)} per step)",
        evidence={"share_of_step": share, "threshold": threshold, "passes": count, "backward_s": backward_s},
        potential_saving_s=potential_saving_s,
        fix="Leave create_graph=True out, unless a gradient is computed of these gradients: it keeps each step's graph "
        "in memory, too",
    )
