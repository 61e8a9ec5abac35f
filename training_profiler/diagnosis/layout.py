"""The rule about convolutions whose tensors lie in another order than tensor cores compute in."""

from typing import Final

from training_profiler.diagnosis.compute_fixes import HALF, busy_part
from training_profiler.diagnosis.registry import MIN_SAVING_S, RULES, has_enough_steps
from training_profiler.findings.finding import Finding
from training_profiler.snapshot.snapshot import Snapshot
from training_profiler.tables.backends import CUDA

CHANNELS_FIRST: Final = "channels-first"
TENSOR_CORES: Final = ("tf32", *HALF)
MAKER: Final = "nvidia"  # cuDNN computes in NHWC; of other libraries nothing was measured
DENSE: Final = 0.03  # of the device's peak: a model below it hardly computes convolutions on tensor cores
SAVES: Final = 0.3  # of the passes: 29 % of a ResNet-50 in tf32 and 46 % of it with autocast, on an H200
FEW: Final = 2  # convolutions


@RULES.rule(CHANNELS_FIRST, threshold=0.10)  # of step time
def channels_first(snapshot: Snapshot, threshold: float) -> Finding | None:
    """Flag a busy NVIDIA GPU whose convolutions get NCHW tensors, which cuDNN converts to NHWC for tensor cores."""
    facts, optimizer = snapshot.program.convolutions, snapshot.program.optimizer
    rates, step = snapshot.throughput, snapshot.step
    if facts is None or rates is None or step is None or optimizer is None or not has_enough_steps(snapshot):
        return None
    if facts.channels_first < FEW or facts.channels_last or facts.inputs_last or snapshot.program.compiled is not None:
        return None
    if optimizer.devices != (CUDA.kind,) or MAKER not in rates.device.casefold() or rates.dtype not in TENSOR_CORES:
        return None
    if busy_part(snapshot) is None or (rates.mfu or 0.0) < DENSE or not step.settled_s:
        return None
    potential_saving_s = SAVES * snapshot.computing_s()
    share = potential_saving_s / step.settled_s
    if share <= threshold or potential_saving_s < MIN_SAVING_S:
        return None
    also = "" if rates.dtype in HALF else "; then use torch.autocast, which brings more with it than before"
    return Finding(
        code=CHANNELS_FIRST,
        message=f"{facts.channels_first} convolutions get their tensors in NCHW order; tensor cores compute in NHWC, "
        "so cuDNN converts them",
        evidence={"share_of_step": share, "threshold": threshold, "convolutions": facts.channels_first},
        potential_saving_s=potential_saving_s,
        fix=f"Call .to(memory_format=torch.channels_last) on the model, and on its inputs{also}",
    )
