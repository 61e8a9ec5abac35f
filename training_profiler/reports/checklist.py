"""The quick checklist: what a well-tuned training looks like, each line beside what was measured."""

from collections.abc import Callable
from typing import Final, NamedTuple

from training_profiler.diagnosis.memory import fullest
from training_profiler.snapshot import Snapshot

PASS, FAIL, UNKNOWN = "PASS", "FAIL", "not measured"


class Check(NamedTuple):
    """One line: what is looked at, the target in words, and the measured figure with whether it is met."""

    what: str
    target: str
    verdict: str
    measured: str  # "" where it is not


def checklist(snapshot: Snapshot) -> list[Check]:
    """Return the checks in the order in which they are worth looking at."""
    return [make(snapshot) for make in _CHECKS]


def checklist_lines(snapshot: Snapshot) -> list[str]:
    """Return the checklist as text, a line a check."""
    checks = checklist(snapshot)
    width = max(len(check.what) for check in checks)
    figures = max(len(check.measured) for check in checks)
    first = len(UNKNOWN)
    return [
        "Quick Checklist:",
        *(
            f"{one.verdict:<{first}}  {one.what:<{width}}  {one.measured:>{figures}}  (target {one.target})"
            for one in checks
        ),
    ]


def _check(what: str, target: str, figure: float | None, is_met: Callable[[float], bool]) -> Check:
    if figure is None:
        return Check(what, target, UNKNOWN, "")
    return Check(what, target, PASS if is_met(figure) else FAIL, f"{figure:.1%}")


def _gpu_utilization(snapshot: Snapshot) -> Check:
    gpus = [] if snapshot.machine is None else snapshot.machine.gpus
    lowest = min((gpu.utilization.mean for gpu in gpus if gpu.utilization is not None), default=None)
    return _check("GPU utilization", "> 80%", lowest, lambda share: share > 0.80)


def _variation(snapshot: Snapshot) -> Check:
    step = snapshot.step
    known = step is not None and step.settled_count > 1 and step.avg_s > 0
    variation = step.std_s / step.avg_s if step is not None and known else None
    what = "step time variation (coefficient of variation)"
    return _check(what, "< 10%", variation, lambda share: share < 0.10)


def _gpu_memory(snapshot: Snapshot) -> Check:
    found = fullest(snapshot)
    return _check("GPU memory", "85-95%", None if found is None else found[1], lambda share: 0.85 <= share <= 0.95)


def _data(snapshot: Snapshot) -> Check:
    shares = [snapshot.share_of_step(name) for name in ("data_loading", "data_generation")]
    known = [share for share in shares if share is not None]
    return _check("data time", "< 10%", sum(known) if known else None, lambda share: share < 0.10)


def _forward(snapshot: Snapshot) -> Check:
    share = snapshot.share_of_step("forward_pass")
    return _check("forward", "35-40%", share, lambda share: 0.35 <= share <= 0.40)


def _backward(snapshot: Snapshot) -> Check:
    share = snapshot.share_of_step("backward_pass")
    return _check("backward", "40-45%", share, lambda share: 0.40 <= share <= 0.45)


def _optimizer(snapshot: Snapshot) -> Check:
    return _check("optimizer", "< 15%", snapshot.share_of_step("optimizer_step"), lambda share: share < 0.15)


def _both_passes(snapshot: Snapshot) -> Check:
    forward, backward = (snapshot.share_of_step(name) for name in ("forward_pass", "backward_pass"))
    together = None if forward is None or backward is None else forward + backward
    return _check("forward + backward dominate", "> 50%", together, lambda share: share > 0.50)


def _flash_attention(snapshot: Snapshot) -> Check:
    kernel = "" if snapshot.throughput is None else snapshot.throughput.attention
    if not kernel:
        return Check("flash attention", "in use", UNKNOWN, "")
    is_flash = kernel.startswith(("flash", "cudnn", "fused"))
    return Check("flash attention", "in use", PASS if is_flash else FAIL, kernel)


def _transfer_gaps(snapshot: Snapshot) -> Check:
    what, known = "CPU-GPU transfer gaps", snapshot.is_by_device("data_transfer")
    share = snapshot.share_of_step("data_transfer") if known else None
    return _check(what, "< 1% of the device's time", share, lambda share: share < 0.01)


def _overlap(snapshot: Snapshot) -> Check:
    # Half: the last bucket's exchange has nothing left to hide behind, and a small model has only two or three buckets.
    overlap = None if snapshot.exchange is None else snapshot.exchange.overlap
    return _check("all-reduce overlapped with computation", "> 50% of it", overlap, lambda share: share > 0.50)


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
