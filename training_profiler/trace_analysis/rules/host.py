"""Rules about what the host does: batches, launches, reads, copies, allocations."""

from typing import Final

from training_profiler.findings.finding import Finding
from training_profiler.findings.registry import Saving
from training_profiler.trace_analysis.analysis import Analysis
from training_profiler.trace_analysis.checklist import data_share
from training_profiler.trace_analysis.gaps import DATA_LOADER, LAUNCH_BOUND, PYTHON
from training_profiler.trace_analysis.rules.registry import RULES, gap_ns, share_of_steps
from training_profiler.units import NS_PER_MS, NS_PER_S

SIDE_WORK: Final = ("metrics_computation", "logging", "ema_update")


@RULES.rule("data-loading-bound", threshold=0.15)
def data_loading(analysis: Analysis, threshold: float) -> Finding | None:
    """Steps that wait for batches for 15 % of their time or more; names a loader that works in the training's own."""
    share = data_share(analysis)
    if share is None or share < threshold:
        return None
    is_synchronous = any("_SingleProcessDataLoaderIter" in name for name in analysis.waiting.data_names)
    how = " from a DataLoader without workers" if is_synchronous else ""
    more = "num_workers=0 loads in the training's own process: " if is_synchronous else ""
    worth_ns = gap_ns(analysis, DATA_LOADER) if analysis.has_gpu else sum(analysis.waiting.data_ns)
    return Finding(
        "data-loading-bound",
        f"{share:.1%} of step time is waiting for batches{how}",
        {"share_of_step": share, "threshold": threshold, "waited_ms": sum(analysis.waiting.data_ns) / NS_PER_MS},
        worth_ns / NS_PER_S,
        f"{more}raise DataLoader(num_workers=...), then pin_memory=True and persistent_workers=True",
    )


@RULES.rule("gpu-idle", threshold=0.80, saving=Saving.UNKNOWN)
def idle(analysis: Analysis, threshold: float) -> Finding | None:
    """A device that works for under 80 % of the steps; says what it waits for."""
    used = analysis.utilization_in_steps
    if used is None or used >= threshold:
        return None
    idle_ns = sum(step.idle_ns for step in analysis.steps)
    causes: dict[str, int] = {}
    for place in analysis.gaps:
        if place.step:
            causes[place.gap.cause] = causes.get(place.gap.cause, 0) + place.gap.length_ns
    main = max(causes, key=lambda cause: causes[cause], default="")
    how_bad = "serious" if used < 0.5 else "likely bound by the CPU" if used < 0.7 else "worth a look"
    return Finding(
        "gpu-idle",
        f"the device works for {used:.1%} of the steps ({how_bad})" + (f"; most gaps: {main}" if main else ""),
        {"utilization": used, "threshold": threshold, "idle_ms": idle_ns / NS_PER_MS, "main_cause": main},
        0.0,  # what the other rules name
        "--view trace tells the cause of each gap; the other recommendations tell what to do about the largest",
    )


@RULES.rule("launch-bound", threshold=0.10)
def launch_bound(analysis: Analysis, threshold: float) -> Finding | None:
    """Steps of which the device spends over 10 % waiting for the host to launch its next kernel."""
    ns = gap_ns(analysis, LAUNCH_BOUND, PYTHON)
    share = share_of_steps(analysis, ns) if analysis.has_gpu else None
    if share is None or share <= threshold:
        return None
    return Finding(
        "launch-bound",
        f"{share:.1%} of step time the device waits for the host to launch work "
        f"({analysis.kernels.short_count} of {analysis.kernels.count} kernels take under 10 us)",
        {"share_of_step": share, "threshold": threshold, "short_kernels": analysis.kernels.short_count},
        ns / NS_PER_S,
        'torch.compile(mode="reduce-overhead") or CUDA graphs; larger batches; fused optimizer and operators',
    )


@RULES.rule("synchronizing-reads", threshold=0.01)
def reads(analysis: Analysis, threshold: float) -> Finding | None:
    """`.item()`, `.cpu()`, printing within steps, in which the host spends over 1 % of step time."""
    share = share_of_steps(analysis, analysis.waiting.read_ns) if analysis.has_gpu else None
    if share is None or share <= threshold:
        return None
    calls = sum(one.count for one in analysis.waiting.reads)
    names = ", ".join(one.name for one in analysis.waiting.reads[:3])
    idle_ns = sum(place.gap.length_ns for place in analysis.gaps if place.follows_read and place.step)
    return Finding(
        "synchronizing-reads",
        f"{calls} times in steps the host waits for a figure from the device ({names}), {share:.1%} of step time",
        {"share_of_step": share, "threshold": threshold, "calls": calls},
        idle_ns / max(1, len(analysis.devices)) / NS_PER_S,
        "keep figures on the device (.detach()) and read them every n-th step; torch.where instead of `if tensor`",
    )


@RULES.rule("pageable-copies", threshold=0.01)
def pageable(analysis: Analysis, threshold: float) -> Finding | None:
    """Copies to the device from memory that is not pinned, over 1 % of step time."""
    rows = [one for one in analysis.copies if "Pageable -> Device" in one.name]
    ns = sum(one.total_ns for one in rows)
    share = share_of_steps(analysis, ns)
    if share is None or share <= threshold:
        return None
    return Finding(
        "pageable-copies",
        f"{sum(one.count for one in rows)} copies from pageable memory take {share:.1%} of step time",
        {"share_of_step": share, "threshold": threshold},
        ns / NS_PER_S,
        "DataLoader(pin_memory=True) and .to(device, non_blocking=True)",
    )


@RULES.rule("allocations", threshold=0.01)
def allocations(analysis: Analysis, threshold: float) -> Finding | None:
    """`cudaMalloc` and `cudaFree` in steady state, over 1 % of step time: the allocator's cache does not hold."""
    ns, calls = analysis.waiting.allocation_ns, analysis.waiting.allocations
    share = share_of_steps(analysis, ns)
    if share is None or share <= threshold:
        return None
    return Finding(
        "allocations",
        f"{calls} calls in steps of cudaMalloc and cudaFree (or HIP's) take {share:.1%} of step time",
        {"share_of_step": share, "threshold": threshold, "calls": calls},
        ns / NS_PER_S,
        "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True; no empty_cache() in the loop; constant shapes",
    )


@RULES.rule("step-time-varies", threshold=0.10, saving=Saving.UNKNOWN)
def varies(analysis: Analysis, threshold: float) -> Finding | None:
    """Steps whose length varies by over 10 %."""
    variation = analysis.step_variation
    if variation is None or variation <= threshold:
        return None
    longest = max(analysis.steps, key=lambda step: step.wall_ns)
    return Finding(
        "step-time-varies",
        f"step time varies by {variation:.1%} over {len(analysis.steps)} steps "
        f"(longest: {longest.name}, {longest.wall_ns / NS_PER_MS:.1f} ms)",
        {"variation": variation, "threshold": threshold, "steps": len(analysis.steps)},
        0.0,
        "compare the gaps of the longest step with the others': data, shapes that change, allocations; where it is the "
        "first that was recorded, recording itself may be why",
    )


@RULES.rule("data-transfer", threshold=0.10)
def data_transfer(analysis: Analysis, threshold: float) -> Finding | None:
    """Copies that no computation hides, over 10 % of step time."""
    ns = sum(step.exposed_copies_ns for step in analysis.steps)
    share = share_of_steps(analysis, ns) if analysis.has_gpu else None
    if share is None or share <= threshold:
        return None
    return Finding(
        "data-transfer",
        f"{share:.1%} of step time the device copies or fills and computes nothing meanwhile",
        {"share_of_step": share, "threshold": threshold},
        ns / NS_PER_S,
        "DataLoader(pin_memory=True) and .to(device, non_blocking=True); copy the next batch while one is computed",
    )


@RULES.rule("side-work", threshold=0.05)
def side_work(analysis: Analysis, threshold: float) -> Finding | None:
    """Metrics, logging or the average of the weights (as sections are called), each over 5 % of step time."""
    named = {name: analysis.waiting.sections_ns.get(name, 0) for name in SIDE_WORK}
    name = max(named, key=lambda one: named[one])
    share = share_of_steps(analysis, named[name])
    if share is None or share <= threshold:
        return None
    return Finding(
        "side-work",
        f"{name} takes the host {share:.1%} of step time",
        {"share_of_step": share, "threshold": threshold, "section": name},
        named[name] / 2 / NS_PER_S,
        "do it every n-th step; torch._foreach_* for norms and averages of the weights",
    )
