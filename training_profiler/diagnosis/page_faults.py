"""Page faults of the training thread: what they cost, and the rule about them."""

from typing import Final

from training_profiler.base.units import ms_text
from training_profiler.diagnosis.machine import SAMPLES_NEEDED
from training_profiler.diagnosis.registry import MIN_SAVING_S, RULES, has_enough_steps
from training_profiler.findings.finding import Finding
from training_profiler.snapshot.machine import MachineStats
from training_profiler.snapshot.pauses import Pause
from training_profiler.snapshot.snapshot import OTHER, Snapshot
from training_profiler.tables.sections import FORWARD_PASS

PAGE_FAULTS: Final = "page-faults"
NEW_MEMORY: Final = "page faults"  # as a cause
# Of the cost of a page of new memory, the least that a fault costs: that cost includes giving the page back, a quarter
# of it, and the kernel need not clear a page of a file.
LEAST_COST: Final = 0.5
TICK_S: Final = 0.01  # in which Linux samples whether a thread is in the kernel, or shorter
MOST_OF_THEM: Final = 0.7
LINE_SAMPLES: Final = 40
CONFIDENCE: Final = 2.0  # standard errors of a number of ticks


def page_fault_time(snapshot: Snapshot) -> Pause | None:
    """Return the time within steps of the page faults that read no disk; None where it is unknown.

    It is their number times the cost of a page of new memory. All of it is CPU time in the kernel, which is the most.
    Both are known for the loop, so the least leaves out what may lie between steps.
    """
    step, machine = snapshot.step, snapshot.machine
    if step is None or not has_enough_steps(snapshot) or not step.total_s:
        return None
    before_s = 0.0 if step.before_s is None or snapshot.first_step else step.before_s
    loop_s = max(step.total_s, snapshot.wall_s - before_s)
    part = _part_of_loop(machine, loop_s)
    if part is None:
        return None
    likely, least, most = part
    between_s = loop_s - step.total_s
    return Pause(
        NEW_MEMORY,
        likely * step.total_s,
        max(0.0, least * loop_s - between_s),
        min(most * loop_s, step.total_s),
    )


def _part_of_loop(machine: MachineStats | None, loop_s: float) -> tuple[float, float, float] | None:
    """Return the part of the loop that page faults take: the likely, the least and the most."""
    if machine is None or machine.page_cost_s is None or machine.samples < SAMPLES_NEEDED:
        return None
    if machine.page_faults is None or machine.cpu_kernel is None or not loop_s:
        return None
    kernel = machine.cpu_kernel.mean
    most = min(1.0, kernel + CONFIDENCE * (kernel * TICK_S / loop_s) ** 0.5)
    likely = min(most, machine.page_faults.mean * machine.page_cost_s)
    return likely, LEAST_COST * likely, most


@RULES.rule(PAGE_FAULTS, threshold=0.05)  # of step time
def page_faults(snapshot: Snapshot, threshold: float) -> Finding | None:
    """Flag steps that surely spend over 5 % on page faults: the least that these may take counts."""
    step, pause = snapshot.step, page_fault_time(snapshot)
    if step is None or pause is None or snapshot.machine is None or snapshot.machine.page_faults is None:
        return None
    share = pause.seconds / step.total_s
    if pause.least_s <= threshold * step.total_s or pause.seconds < MIN_SAVING_S:
        return None
    each = [ms_text(seconds / step.count) for seconds in (pause.seconds, pause.least_s, pause.most_s)]
    pages = snapshot.machine.page_faults.mean * step.total_s / step.count
    line, where = _line_of_most(snapshot, share)
    return Finding(
        code=PAGE_FAULTS,
        message=f"Page faults take about {share:.0%} of step time ({each[0]} per step, {each[1]} to {each[2]}): about "
        f"{pages:,.0f} pages of memory are new in each step{where}",
        evidence={
            **line,
            "share_of_step": share,
            "threshold": threshold,
            "seconds": pause.seconds,
            "least_s": pause.least_s,
            "most_s": pause.most_s,
            "pages_per_step": pages,
        },
        potential_saving_s=pause.seconds * step.settled_s / step.total_s,
        fix="Use memory again instead of freeing it in each step (out=, buffers that stay). For tensors on the CPU, "
        "set MALLOC_MMAP_THRESHOLD_=1073741824 and MALLOC_TRIM_THRESHOLD_=4294967296 (glibc), or load jemalloc or "
        "tcmalloc by LD_PRELOAD: they keep freed memory",
    )


def _line_of_most(snapshot: Snapshot, share: float) -> tuple[dict[str, str], str]:
    """Return the line that surely has most page faults, as evidence and text; empty where there is none.

    Only their number in all steps is known. If they take 70 % of these and a line takes 90 %, at least 60 % is both.
    """
    step = snapshot.step
    if step is None or not step.total_s:
        return {}, ""
    for name in (FORWARD_PASS, OTHER):
        for line in snapshot.lines_of_steps(name)[:1]:
            part = min(1.0, line.share * snapshot.wall_s / step.total_s)
            if line.samples >= LINE_SAMPLES and part + share - 1 >= MOST_OF_THEM * share:
                place = f"{line.place} {line.what}"
                return {"lines": place}, f"; most of them at {place}, which takes {part:.0%} of step time"
    return {}, ""
