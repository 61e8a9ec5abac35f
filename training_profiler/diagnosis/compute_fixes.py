"""Fixes for forward pass and optimizer, from what the program has set: nothing that is set, impossible or harmful."""

from typing import Final

from training_profiler.base.backends import CUDA
from training_profiler.base.sections import OPTIMIZER_STEP
from training_profiler.diagnosis.finding import Change, Fix
from training_profiler.diagnosis.places import OWN_SAVES
from training_profiler.model.program import OptimizerFacts
from training_profiler.model.snapshot import Snapshot

HALF: Final = ("bfloat16", "float16", "float8_e4m3fn", "float8_e5m2")
FEW_TENSORS: Final = 8  # below it there is little to put together
LBFGS: Final = "LBFGS"  # computes the loss itself, often of all data at once
ONE_BY_ONE: Final = (LBFGS, "SparseAdam", "Muon")  # of torch, which has no faster form of them
# Of the time of an update on the CPU, one tensor after the other; medians of nine models from 11,000 to 19 million
# parameters with one thread. Adam 61 to 86 %, Adagrad 50 to 81 %, SGD -2 to 50 %, with momentum 23 to 70 %.
FUSED_SAVES: Final = {"Adam": 0.72, "AdamW": 0.72, "Adagrad": 0.6, "SGD": 0.2}
WITH_MOMENTUM_SAVES: Final = 0.4
# On the CPU foreach=True saves 20 to 35 % of tensors of up to 4,000 numbers; with larger ones it took up to three times
# as long.
FOREACH_SAVES: Final = 0.25
OTHERWISE_SAVES: Final = 0.5
COMPUTING_TRIALS: Final = ("num_threads", "channels_last", "compile", "cudnn_benchmark", "matmul_precision", "autocast")
IDLE_BELOW: Final = 0.8  # of the loop in which a device runs a kernel


def is_device_idle(snapshot: Snapshot) -> bool:
    """Return whether an accelerator is known to wait for the host for much of the loop."""
    busy = None if snapshot.machine is None else snapshot.machine.least_busy
    return busy is not None and busy[0] < IDLE_BELOW


def busy_part(snapshot: Snapshot) -> float | None:
    """Return for how much of the loop the least busy accelerator runs kernels of this process.

    None below 80 %, or if unknown.
    """
    machine = snapshot.machine
    if machine is None or machine.least_busy is None:
        return None
    busy = machine.least_busy[0]
    if machine.most_shared is not None:
        busy = max(0.0, busy - machine.most_shared[0])
    return None if busy < IDLE_BELOW else busy


def forward_fix(snapshot: Snapshot) -> Fix:
    """Return what to change where the forward pass takes most of the step."""
    program, rates = snapshot.program, snapshot.throughput
    dtypes = set(() if program.optimizer is None else program.optimizer.dtypes) | {"" if rates is None else rates.dtype}
    devices = () if program.optimizer is None else program.optimizer.devices
    words, changes = [], [Change.OTHER_MODEL]
    # A CPU without units for bfloat16 becomes slower. A device that waits for the host gains nothing: the conversions
    # are more work for the host.
    is_slow_host = devices == ("cpu",) or is_device_idle(snapshot)
    if not program.autocast and not dtypes & set(HALF) and not is_slow_host:
        words.append("mixed precision (torch.autocast)")
        changes.append(Change.AUTOCAST)
    if program.compiled is None:
        words.append("torch.compile")
        changes.append(Change.COMPILE)
    words.append("a smaller model, or a faster one of the same quality")
    text = f"Use {', '.join(words[:-1])}, or {words[-1]}"
    return Fix(text if len(words) > 1 else f"Use {words[0]}: the usual switches are set already", tuple(changes))


def optimizer_fix(snapshot: Snapshot) -> Fix:
    """Return what to change where the optimizer takes long."""
    facts = snapshot.program.optimizer
    accumulate = "accumulate gradients over several batches"
    if facts is None:
        return Fix(
            f"Pass fused=True or foreach=True to an optimizer of torch.optim; or {accumulate}",
            (Change.FUSED, Change.FOREACH, Change.OTHER_MODEL, Change.ACCUMULATION),
        )
    if facts.name == LBFGS:
        return Fix(
            "Lower history_size, or train fewer parameters: LBFGS goes through its history for each evaluation",
            (Change.SHORTER_HISTORY, Change.OTHER_MODEL),
        )
    if not _is_in_updates(snapshot):
        return Fix(
            f"Lower history_size, and leave set_to_none=False out: most of it is not in {facts.name}'s updates. An "
            "optimizer that evaluates a closure, such as LBFGS, goes through its history for each evaluation",
            (Change.SHORTER_HISTORY, Change.SET_TO_NONE),
        )
    if not facts.fused and can_fuse(facts):
        return Fix(f"{facts.name}(..., fused=True); or {accumulate}", (Change.FUSED, Change.ACCUMULATION))
    if not facts.fused and _can_use_foreach(facts):
        return Fix(
            f"{facts.name}(..., foreach=True); it has no fused form for these parameters; or {accumulate}",
            (Change.FOREACH, Change.ACCUMULATION),
        )
    if not facts.fused and _is_own(facts):
        at_once, change = "Use torch._foreach functions in", Change.FOREACH
        if "cpu" in facts.devices and not _has_small_tensors(facts):
            at_once, change = "Compute in place (mul_, addcmul_) in", Change.IN_PLACE
        return Fix(
            f"{at_once} {facts.name}, which updates {facts.tensors} tensors one by one; or an optimizer of torch.optim "
            f"with fused=True; or {accumulate}",
            (change, Change.FUSED, Change.OTHER_MODEL, Change.ACCUMULATION),
        )
    so_far = f"{facts.name} is fused already" if facts.fused else f"nothing is left to set in {facts.name}"
    return Fix(f"A{accumulate[1:]}, or train fewer parameters: {so_far}", (Change.ACCUMULATION, Change.OTHER_MODEL))


def optimizer_saves(snapshot: Snapshot) -> float:
    """Return the part of the optimizer's time that its fix saves."""
    facts = snapshot.program.optimizer
    if facts is None or facts.fused or not _is_in_updates(snapshot):
        return OTHERWISE_SAVES
    if facts.devices != ("cpu",):
        is_one_by_one = facts.foreach is False and facts.tensors >= FEW_TENSORS and can_fuse(facts)
        return 0.9 if is_one_by_one else OTHERWISE_SAVES  # foreach=False launches several kernels a tensor
    if can_fuse(facts):
        saves = FUSED_SAVES.get(facts.name, OTHERWISE_SAVES)
        return WITH_MOMENTUM_SAVES if facts.name == "SGD" and facts.has_momentum else saves
    if _is_own(facts):
        return OWN_SAVES
    return FOREACH_SAVES if _can_use_foreach(facts) else OTHERWISE_SAVES


def _is_own(facts: OptimizerFacts) -> bool:
    """Return whether the optimizer is none of torch's, and updates one tensor after the other."""
    return (
        facts.name not in ONE_BY_ONE and not facts.has_foreach and not facts.has_fused and facts.tensors >= FEW_TENSORS
    )


def _has_small_tensors(facts: OptimizerFacts) -> bool:
    return facts.numbers <= 5_000 * facts.tensors


def _can_use_foreach(facts: OptimizerFacts) -> bool:
    """Return whether ``foreach=True`` is left to set, and helps."""
    is_left = facts.has_foreach and facts.foreach is not True and facts.tensors >= FEW_TENSORS
    return is_left and ("cpu" not in facts.devices or _has_small_tensors(facts))


def _is_in_updates(snapshot: Snapshot) -> bool:
    """Return whether most of the time is in whole updates: those that evaluate a closure are not spans of their own."""
    section = snapshot.sections.get(OPTIMIZER_STEP)
    if section is None or section.avg_s is None or snapshot.is_by_device(OPTIMIZER_STEP):
        return True
    return section.count * section.avg_s >= 0.5 * section.total_s


def can_fuse(facts: OptimizerFacts) -> bool:
    """Return whether ``fused=True`` works: floating-point parameters, all on the CPU or on a device of CUDA."""
    is_floating = all(dtype.startswith(("float", "bfloat")) for dtype in facts.dtypes)
    return facts.has_fused and is_floating and len(facts.devices) == 1 and facts.devices[0] in ("cpu", CUDA.kind)
