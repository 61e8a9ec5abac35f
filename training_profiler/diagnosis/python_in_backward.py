"""The rule about backward passes of the program's own autograd functions that run Python or NumPy."""

from typing import Final

from training_profiler.base.units import ms_text
from training_profiler.diagnosis.in_python import in_python
from training_profiler.diagnosis.places import places_text
from training_profiler.diagnosis.registry import MIN_SAVING_S, RULES, has_enough_steps
from training_profiler.diagnosis.time_steps import is_on_cpu
from training_profiler.findings.finding import Finding
from training_profiler.snapshot.lines import hottest_places
from training_profiler.snapshot.snapshot import Snapshot
from training_profiler.tables.pass_phases import CUSTOM_BACKWARD
from training_profiler.tables.sections import BACKWARD_PASS

PYTHON_IN_BACKWARD: Final = "python-in-backward"
SAMPLES_NEEDED: Final = 20  # of lines in such functions; the error of a part of a half is then about 0.1
MOST_NAMED: Final = 2


@RULES.rule(PYTHON_IN_BACKWARD, threshold=0.10)  # of step time
def python_in_backward(snapshot: Snapshot, threshold: float) -> Finding | None:
    """Flag Python and other libraries in own autograd functions, for over 10 % of step time in backward passes.

    Operators of torch in them do not count. None where backward passes run on another thread.
    """
    step, section = snapshot.step, snapshot.sections.get(BACKWARD_PASS)
    if step is None or not has_enough_steps(snapshot) or not step.settled_s or section is None or not section.share:
        return None
    passes_s = snapshot.total_of_step_s(BACKWARD_PASS)
    lines = [line for line in snapshot.lines_of_steps(BACKWARD_PASS) if line.phase == CUSTOM_BACKWARD]
    if not passes_s or not is_on_cpu(snapshot.program) or sum(line.samples for line in lines) < SAMPLES_NEEDED:
        return None
    python = in_python(lines)
    whole = sum(line.share for line in python)
    spent_s = min(1.0, whole / section.share) * passes_s
    share = spent_s / step.settled_s
    if share <= threshold or spent_s < MIN_SAVING_S:
        return None
    texts = places_text(hottest_places(sorted(python, key=lambda line: -line.share))[:MOST_NAMED], whole)
    return Finding(
        code=PYTHON_IN_BACKWARD,
        message=f"Backward passes of own autograd functions run Python or other libraries for {share:.0%} of step time "
        f"({ms_text(spent_s / step.settled_count)} per step), above all in {texts}",
        evidence={"share_of_step": share, "threshold": threshold, "seconds": spent_s, "lines": texts},
        potential_saving_s=spent_s,
        fix="Write these functions as operations on whole tensors of torch: it computes their gradients itself",
    )
