"""The quick checklist: targets of a well-tuned training, each beside the measured figure."""

from training_profiler.diagnosis.device import fullest
from training_profiler.findings.finding import FAIL, PASS, UNKNOWN, Check, check, check_lines
from training_profiler.reports.layout import Layout
from training_profiler.snapshot.snapshot import Snapshot
from training_profiler.tables.sections import (
    BACKWARD_PASS,
    DATA_GENERATION,
    DATA_LOADING,
    DATA_TRANSFER,
    FORWARD_PASS,
    OPTIMIZER_STEP,
)


def checklist(snapshot: Snapshot) -> list[Check]:
    """Return the checks, the most important first."""
    share, step, busy, full = snapshot.share_of_step, snapshot.step, None, fullest(snapshot)
    if snapshot.machine is not None and snapshot.machine.least_busy is not None:
        busy = snapshot.machine.least_busy[0]
    known = step is not None and step.settled_count > 1 and step.avg_s > 0
    variation = step.std_s / step.avg_s if step is not None and known else None
    data = [part for part in (share(DATA_LOADING), share(DATA_GENERATION)) if part is not None]
    forward, backward = share(FORWARD_PASS), share(BACKWARD_PASS)
    transfer = share(DATA_TRANSFER) if snapshot.is_by_device(DATA_TRANSFER) else None
    overlap = None if snapshot.exchange is None else snapshot.exchange.overlap
    return [
        check("GPU utilization", "> 80%", busy, lambda share: share > 0.80),
        check("step time variation (coefficient of variation)", "< 10%", variation, lambda share: share < 0.10),
        check("GPU memory", "85-95%", None if full is None else full[1], lambda share: 0.85 <= share <= 0.95),
        check("data time", "< 10%", sum(data) if data else None, lambda share: share < 0.10),
        check("forward", "35-40%", forward, lambda share: 0.35 <= share <= 0.40),
        check("backward", "40-45%", backward, lambda share: 0.40 <= share <= 0.45),
        check("optimizer", "< 15%", share(OPTIMIZER_STEP), lambda share: share < 0.15),
        check(
            "forward + backward dominate",
            "> 50%",
            None if forward is None or backward is None else forward + backward,
            lambda share: share > 0.50,
        ),
        _flash_attention(snapshot),
        check("CPU-GPU transfer gaps", "< 1% of the device's time", transfer, lambda share: share < 0.01),
        # Half: the last bucket cannot overlap with anything, and a small model has only two or three buckets.
        check("all-reduce overlapped with computation", "> 50% of it", overlap, lambda share: share > 0.50),
    ]


def _flash_attention(snapshot: Snapshot) -> Check:
    kernel = "" if snapshot.throughput is None else snapshot.throughput.attention
    if not kernel:
        return Check("flash attention", "in use", UNKNOWN, "")
    is_flash = kernel.startswith(("flash", "cudnn", "fused"))
    return Check("flash attention", "in use", PASS if is_flash else FAIL, kernel)


def checklist_lines(snapshot: Snapshot, layout: Layout) -> list[str]:
    """Return the checklist as text: in columns where they fit, else one sentence per check."""
    checks = checklist(snapshot)
    lines = check_lines(checks)
    if not layout.is_lines and max(map(len, lines)) > layout.width:
        lines = [line for result in checks for line in _two_part_lines(result, layout)]
    return ["Quick Checklist:", *lines]


def _two_part_lines(result: Check, layout: Layout) -> list[str]:
    """Return a check and its target, which goes to a second line where the first is too long."""
    measured = f": {result.measured}" if result.measured else ""
    line, target = f"{result.verdict:<{len(UNKNOWN)}}  {result.what}{measured}", f"(target {result.target})"
    if len(line) + 1 + len(target) <= layout.width:
        return [f"{line} {target}"]
    return [line, " " * (len(UNKNOWN) + 2) + target]
