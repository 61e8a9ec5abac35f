"""Rules about the host: batches, launches, reads, copies, allocations."""

from typing import Final

from training_profiler.findings.finding import Finding
from training_profiler.findings.registry import Saving
from training_profiler.recording.known_sections import EMA_UPDATE, LOGGING, METRICS_COMPUTATION
from training_profiler.trace_analysis.analysis import Analysis
from training_profiler.trace_analysis.checklist import data_share
from training_profiler.trace_analysis.gaps import DATA_LOADER, LAUNCH_BOUND, PYTHON
from training_profiler.trace_analysis.rules.registry import RULES, gap_ns, share_of_steps
from training_profiler.units import NS_PER_MS, NS_PER_S

SIDE_WORK: Final = (METRICS_COMPUTATION, LOGGING, EMA_UPDATE)


@RULES.rule("data-loading-bound", threshold=0.15)
def data_loading(analysis: Analysis, threshold: float) -> Finding | None:
    """Flag steps that wait for batches for 15 % of their time or more, and a DataLoader without workers."""
    share = data_share(analysis)
    if share is None or share < threshold:
        return None
    is_synchronous = any("_SingleProcessDataLoaderIter" in name for name in analysis.waiting.data_names)
    how = " from a DataLoader without workers" if is_synchronous else ""
    reason = " (0 loads batches in the training process)" if is_synchronous else ""
    saved_ns = gap_ns(analysis, DATA_LOADER) if analysis.has_gpu else sum(analysis.waiting.data_ns)
    return Finding(
        "data-loading-bound",
        f"{share:.1%} of step time is spent waiting for batches{how}",
        {"share_of_step": share, "threshold": threshold, "waited_ms": sum(analysis.waiting.data_ns) / NS_PER_MS},
        saved_ns / NS_PER_S,
        f"Raise DataLoader(num_workers=...){reason}, then set pin_memory=True and persistent_workers=True",
    )


@RULES.rule("gpu-idle", threshold=0.80, saving=Saving.UNKNOWN)
def idle(analysis: Analysis, threshold: float) -> Finding | None:
    """Flag a device that is busy for under 80 % of the steps, and name what it mostly waits for."""
    used = analysis.utilization_in_steps
    if used is None or used >= threshold:
        return None
    idle_ns = sum(step.idle_ns for step in analysis.steps)
    causes: dict[str, int] = {}
    for attributed in analysis.gaps:
        if attributed.step:
            gap = attributed.gap
            causes[gap.cause] = causes.get(gap.cause, 0) + gap.length_ns
    main = max(causes, key=lambda cause: causes[cause], default="")
    cause = f"; main cause of idle time: {main}" if main else ""
    verdict = "serious" if used < 0.5 else "the CPU probably cannot keep up" if used < 0.7 else "could be higher"
    return Finding(
        "gpu-idle",
        f"The device is busy for {used:.1%} of the steps ({verdict}){cause}",
        {"utilization": used, "threshold": threshold, "idle_ms": idle_ns / NS_PER_MS, "main_cause": main},
        0.0,  # the other findings split it by cause
        "Fix the main cause first: --view trace shows the cause of every gap",
    )


@RULES.rule("launch-bound", threshold=0.10)
def launch_bound(analysis: Analysis, threshold: float) -> Finding | None:
    """Flag a device that waits for the host to launch its next kernel for over 10 % of step time."""
    ns = gap_ns(analysis, LAUNCH_BOUND, PYTHON)
    share = share_of_steps(analysis, ns) if analysis.has_gpu else None
    if share is None or share <= threshold:
        return None
    return Finding(
        "launch-bound",
        f"The device waits for the host to launch work for {share:.1%} of step time "
        f"({analysis.kernels.short_count} of {analysis.kernels.count} kernels take under 10 us)",
        {"share_of_step": share, "threshold": threshold, "short_kernels": analysis.kernels.short_count},
        ns / NS_PER_S,
        'Use torch.compile(mode="reduce-overhead") or CUDA graphs, larger batches, a fused optimizer, fused operators',
    )


@RULES.rule("synchronizing-reads", threshold=0.01)
def reads(analysis: Analysis, threshold: float) -> Finding | None:
    """Flag `.item()`, `.cpu()` and printing in steps that take the host over 1 % of step time."""
    share = share_of_steps(analysis, analysis.waiting.read_ns) if analysis.has_gpu else None
    if share is None or share <= threshold:
        return None
    calls = sum(read.count for read in analysis.waiting.reads)
    names = ", ".join(read.name for read in analysis.waiting.reads[:3])
    idle_ns = sum(gap.gap.length_ns for gap in analysis.gaps if gap.follows_read and gap.step)
    return Finding(
        "synchronizing-reads",
        f"The host waits {calls} times in steps to read from the device ({names}), for {share:.1%} of step time",
        {"share_of_step": share, "threshold": threshold, "calls": calls},
        idle_ns / max(1, len(analysis.devices)) / NS_PER_S,
        "Keep values on the device (.detach()) and read them every n-th step; use torch.where instead of `if tensor`",
    )


@RULES.rule("pageable-copies", threshold=0.01)
def pageable(analysis: Analysis, threshold: float) -> Finding | None:
    """Flag copies to the device from memory that is not pinned, over 1 % of step time."""
    rows = [copy for copy in analysis.copies if "Pageable -> Device" in copy.name]
    ns = sum(copy.total_ns for copy in rows)
    share = share_of_steps(analysis, ns)
    if share is None or share <= threshold:
        return None
    return Finding(
        "pageable-copies",
        f"{sum(copy.count for copy in rows)} copies from pageable memory take {share:.1%} of step time",
        {"share_of_step": share, "threshold": threshold},
        ns / NS_PER_S,
        "Use DataLoader(pin_memory=True) and .to(device, non_blocking=True)",
    )


@RULES.rule("allocations", threshold=0.01)
def allocations(analysis: Analysis, threshold: float) -> Finding | None:
    """Flag `cudaMalloc` and `cudaFree` in steps, over 1 % of step time: the allocator's cache is not enough."""
    ns, calls = analysis.waiting.allocation_ns, analysis.waiting.allocations
    share = share_of_steps(analysis, ns)
    if share is None or share <= threshold:
        return None
    return Finding(
        "allocations",
        f"{calls} calls of cudaMalloc and cudaFree (or HIP's) in steps take {share:.1%} of step time",
        {"share_of_step": share, "threshold": threshold, "calls": calls},
        ns / NS_PER_S,
        "Set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True, do not call empty_cache() in the loop, and keep "
        "shapes constant",
    )


@RULES.rule("step-time-varies", threshold=0.10, saving=Saving.UNKNOWN)
def varies(analysis: Analysis, threshold: float) -> Finding | None:
    """Flag steps whose length varies by over 10 %."""
    variation = analysis.step_variation
    if variation is None or variation <= threshold:
        return None
    longest = max(analysis.steps, key=lambda step: step.wall_ns)
    return Finding(
        "step-time-varies",
        f"Step time varies by {variation:.1%} over {len(analysis.steps)} steps "
        f"(longest: {longest.name}, {longest.wall_ns / NS_PER_MS:.1f} ms)",
        {"variation": variation, "threshold": threshold, "steps": len(analysis.steps)},
        0.0,
        "Compare the gaps of the longest step with those of others: data, changing shapes, allocations; if it is the "
        "first recorded step, the start of recording may be the reason",
    )


@RULES.rule("data-transfer", threshold=0.10)
def data_transfer(analysis: Analysis, threshold: float) -> Finding | None:
    """Flag copies that no computation hides, over 10 % of step time."""
    ns = sum(step.exposed_copies_ns for step in analysis.steps)
    share = share_of_steps(analysis, ns) if analysis.has_gpu else None
    if share is None or share <= threshold:
        return None
    return Finding(
        "data-transfer",
        f"For {share:.1%} of step time the device copies or fills memory without computing",
        {"share_of_step": share, "threshold": threshold},
        ns / NS_PER_S,
        "Use DataLoader(pin_memory=True) and .to(device, non_blocking=True); copy the next batch during computation",
    )


@RULES.rule("side-work", threshold=0.05)
def side_work(analysis: Analysis, threshold: float) -> Finding | None:
    """Flag a section for metrics, logging or weight averaging that takes the host over 5 % of step time."""
    named = {name: analysis.waiting.sections_ns.get(name, 0) for name in SIDE_WORK}
    name = max(named, key=lambda section: named[section])
    share = share_of_steps(analysis, named[name])
    if share is None or share <= threshold:
        return None
    return Finding(
        "side-work",
        f"{name} takes {share:.1%} of step time on the host",
        {"share_of_step": share, "threshold": threshold, "section": name},
        named[name] / 2 / NS_PER_S,
        "Do it every n-th step; use torch._foreach_* for norms and weight averages",
    )
