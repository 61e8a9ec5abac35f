"""The quick checklist: targets of a well-tuned training, each beside the measured figure."""

from typing import Final

from training_profiler.diagnosis.memory import fullest
from training_profiler.findings.check import FAIL, PASS, UNKNOWN, Check, check, check_lines
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
    return [make(snapshot) for make in _CHECKS]


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


def _gpu_utilization(snapshot: Snapshot) -> Check:
    busy = None if snapshot.machine is None else snapshot.machine.least_busy
    return check("GPU utilization", "> 80%", None if busy is None else busy[0], lambda share: share > 0.80)


def _variation(snapshot: Snapshot) -> Check:
    step = snapshot.step
    known = step is not None and step.settled_count > 1 and step.avg_s > 0
    variation = step.std_s / step.avg_s if step is not None and known else None
    what = "step time variation (coefficient of variation)"
    return check(what, "< 10%", variation, lambda share: share < 0.10)


def _gpu_memory(snapshot: Snapshot) -> Check:
    device = fullest(snapshot)
    return check("GPU memory", "85-95%", None if device is None else device[1], lambda share: 0.85 <= share <= 0.95)


def _data(snapshot: Snapshot) -> Check:
    shares = [snapshot.share_of_step(name) for name in (DATA_LOADING, DATA_GENERATION)]
    known = [share for share in shares if share is not None]
    return check("data time", "< 10%", sum(known) if known else None, lambda share: share < 0.10)


def _forward(snapshot: Snapshot) -> Check:
    share = snapshot.share_of_step(FORWARD_PASS)
    return check("forward", "35-40%", share, lambda share: 0.35 <= share <= 0.40)


def _backward(snapshot: Snapshot) -> Check:
    share = snapshot.share_of_step(BACKWARD_PASS)
    return check("backward", "40-45%", share, lambda share: 0.40 <= share <= 0.45)


def _optimizer(snapshot: Snapshot) -> Check:
    return check("optimizer", "< 15%", snapshot.share_of_step(OPTIMIZER_STEP), lambda share: share < 0.15)


def _both_passes(snapshot: Snapshot) -> Check:
    forward, backward = (snapshot.share_of_step(name) for name in (FORWARD_PASS, BACKWARD_PASS))
    together = None if forward is None or backward is None else forward + backward
    return check("forward + backward dominate", "> 50%", together, lambda share: share > 0.50)


def _flash_attention(snapshot: Snapshot) -> Check:
    kernel = "" if snapshot.throughput is None else snapshot.throughput.attention
    if not kernel:
        return Check("flash attention", "in use", UNKNOWN, "")
    is_flash = kernel.startswith(("flash", "cudnn", "fused"))
    return Check("flash attention", "in use", PASS if is_flash else FAIL, kernel)


def _transfer_gaps(snapshot: Snapshot) -> Check:
    what, known = "CPU-GPU transfer gaps", snapshot.is_by_device(DATA_TRANSFER)
    share = snapshot.share_of_step(DATA_TRANSFER) if known else None
    return check(what, "< 1% of the device's time", share, lambda share: share < 0.01)


def _overlap(snapshot: Snapshot) -> Check:
    # Half: the last bucket cannot overlap with anything, and a small model has only two or three buckets.
    overlap = None if snapshot.exchange is None else snapshot.exchange.overlap
    return check("all-reduce overlapped with computation", "> 50% of it", overlap, lambda share: share > 0.50)


_CHECKS: Final = (
    _gpu_utilization,
    _variation,
    _gpu_memory,
    _data,
    _forward,
    _backward,
    _optimizer,
    _both_passes,
    _flash_attention,
    _transfer_gaps,
    _overlap,
)
