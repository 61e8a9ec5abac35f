"""Rules about what the host does: batches, launches, reads, copies, allocations."""

from typing import Final

from training_profiler.recording.known_sections import EMA_UPDATE, LOGGING, METRICS_COMPUTATION
from training_profiler.trace_analysis.analysis import Analysis
from training_profiler.trace_analysis.checklist import data_share
from training_profiler.trace_analysis.gaps import DATA_LOADER, LAUNCH_BOUND, PYTHON
from training_profiler.trace_analysis.rules.rule import NS_PER_MS, Recommendation, gap_ns, rule, share_of_steps

SIDE_WORK: Final = (METRICS_COMPUTATION, LOGGING, EMA_UPDATE)


@rule("data-loading-bound", 0.15)
def data_loading(found: Analysis, threshold: float) -> Recommendation | None:
    """Steps that wait for batches for 15 % of their time or more; names a loader that works in the training's own."""
    share = data_share(found)
    if share is None or share < threshold:
        return None
    is_synchronous = any("_SingleProcessDataLoaderIter" in name for name in found.waiting.data_names)
    how = " from a DataLoader without workers" if is_synchronous else ""
    more = "num_workers=0 loads in the training's own process: " if is_synchronous else ""
    worth_ns = gap_ns(found, DATA_LOADER) if found.has_gpu else sum(found.waiting.data_ns)
    return Recommendation(
        "data-loading-bound",
        f"{share:.1%} of step time is waiting for batches{how}",
        {"share_of_step": share, "threshold": threshold, "waited_ms": sum(found.waiting.data_ns) / NS_PER_MS},
        worth_ns / NS_PER_MS,
        f"{more}raise DataLoader(num_workers=...), then pin_memory=True and persistent_workers=True",
    )


@rule("gpu-idle", 0.80)
def idle(found: Analysis, threshold: float) -> Recommendation | None:
    """A device that works for under 80 % of the steps; says what it waits for."""
    used = found.utilization_in_steps
    if used is None or used >= threshold:
        return None
    idle_ns = sum(step.idle_ns for step in found.steps)
    causes: dict[str, int] = {}
    for place in found.gaps:
        if place.step:
            causes[place.gap.cause] = causes.get(place.gap.cause, 0) + place.gap.length_ns
    main = max(causes, key=lambda cause: causes[cause], default="")
    how_bad = "serious" if used < 0.5 else "likely bound by the CPU" if used < 0.7 else "worth a look"
    return Recommendation(
        "gpu-idle",
        f"the device works for {used:.1%} of the steps ({how_bad})" + (f"; most gaps: {main}" if main else ""),
        {"utilization": used, "threshold": threshold, "idle_ms": idle_ns / NS_PER_MS, "main_cause": main},
        None,  # what the other rules name
        "--view trace tells the cause of each gap; the other recommendations tell what to do about the largest",
    )


@rule("launch-bound", 0.10)
def launch_bound(found: Analysis, threshold: float) -> Recommendation | None:
    """Steps of which the device spends over 10 % waiting for the host to launch its next kernel."""
    ns = gap_ns(found, LAUNCH_BOUND, PYTHON)
    share = share_of_steps(found, ns) if found.has_gpu else None
    if share is None or share <= threshold:
        return None
    return Recommendation(
        "launch-bound",
        f"{share:.1%} of step time the device waits for the host to launch work "
        f"({found.kernels.short_count} of {found.kernels.count} kernels take under 10 us)",
        {"share_of_step": share, "threshold": threshold, "short_kernels": found.kernels.short_count},
        ns / NS_PER_MS,
        'torch.compile(mode="reduce-overhead") or CUDA graphs; larger batches; fused optimizer and operators',
    )


@rule("synchronizing-reads", 0.01)
def reads(found: Analysis, threshold: float) -> Recommendation | None:
    """`.item()`, `.cpu()`, printing within steps, in which the host spends over 1 % of step time."""
    share = share_of_steps(found, found.waiting.read_ns) if found.has_gpu else None
    if share is None or share <= threshold:
        return None
    calls = sum(one.count for one in found.waiting.reads)
    names = ", ".join(one.name for one in found.waiting.reads[:3])
    idle_ns = sum(place.gap.length_ns for place in found.gaps if place.follows_read and place.step)
    return Recommendation(
        "synchronizing-reads",
        f"{calls} times in steps the host waits for a figure from the device ({names}), {share:.1%} of step time",
        {"share_of_step": share, "threshold": threshold, "calls": calls},
        idle_ns / max(1, len(found.devices)) / NS_PER_MS,
        "keep figures on the device (.detach()) and read them every n-th step; torch.where instead of `if tensor`",
    )


@rule("pageable-copies", 0.01)
def pageable(found: Analysis, threshold: float) -> Recommendation | None:
    """Copies to the device from memory that is not pinned, over 1 % of step time."""
    rows = [one for one in found.copies if "Pageable -> Device" in one.name]
    ns = sum(one.total_ns for one in rows)
    share = share_of_steps(found, ns)
    if share is None or share <= threshold:
        return None
    return Recommendation(
        "pageable-copies",
        f"{sum(one.count for one in rows)} copies from pageable memory take {share:.1%} of step time",
        {"share_of_step": share, "threshold": threshold},
        ns / NS_PER_MS,
        "DataLoader(pin_memory=True) and .to(device, non_blocking=True)",
    )


@rule("allocations", 0.01)
def allocations(found: Analysis, threshold: float) -> Recommendation | None:
    """`cudaMalloc` and `cudaFree` in steady state, over 1 % of step time: the allocator's cache does not hold."""
    ns, calls = found.waiting.allocation_ns, found.waiting.allocations
    share = share_of_steps(found, ns)
    if share is None or share <= threshold:
        return None
    return Recommendation(
        "allocations",
        f"{calls} calls in steps of cudaMalloc and cudaFree (or HIP's) take {share:.1%} of step time",
        {"share_of_step": share, "threshold": threshold, "calls": calls},
        ns / NS_PER_MS,
        "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True; no empty_cache() in the loop; constant shapes",
    )


@rule("step-time-varies", 0.10)
def varies(found: Analysis, threshold: float) -> Recommendation | None:
    """Steps whose length varies by over 10 %."""
    variation = found.step_variation
    if variation is None or variation <= threshold:
        return None
    longest = max(found.steps, key=lambda step: step.wall_ns)
    return Recommendation(
        "step-time-varies",
        f"step time varies by {variation:.1%} over {len(found.steps)} steps "
        f"(longest: {longest.name}, {longest.wall_ns / NS_PER_MS:.1f} ms)",
        {"variation": variation, "threshold": threshold, "steps": len(found.steps)},
        None,
        "compare the gaps of the longest step with the others': data, shapes that change, allocations; where it is the "
        "first that was recorded, recording itself may be why",
    )


@rule("data-transfer", 0.10)
def data_transfer(found: Analysis, threshold: float) -> Recommendation | None:
    """Copies that no computation hides, over 10 % of step time."""
    ns = sum(step.exposed_copies_ns for step in found.steps)
    share = share_of_steps(found, ns) if found.has_gpu else None
    if share is None or share <= threshold:
        return None
    return Recommendation(
        "data-transfer",
        f"{share:.1%} of step time the device copies or fills and computes nothing meanwhile",
        {"share_of_step": share, "threshold": threshold},
        ns / NS_PER_MS,
        "DataLoader(pin_memory=True) and .to(device, non_blocking=True); copy the next batch while one is computed",
    )


@rule("side-work", 0.05)
def side_work(found: Analysis, threshold: float) -> Recommendation | None:
    """Metrics, logging or the average of the weights (as sections are called), each over 5 % of step time."""
    named = {name: found.waiting.sections_ns.get(name, 0) for name in SIDE_WORK}
    name = max(named, key=lambda one: named[one])
    share = share_of_steps(found, named[name])
    if share is None or share <= threshold:
        return None
    return Recommendation(
        "side-work",
        f"{name} takes the host {share:.1%} of step time",
        {"share_of_step": share, "threshold": threshold, "section": name},
        named[name] / 2 / NS_PER_MS,
        "do it every n-th step; torch._foreach_* for norms and averages of the weights",
    )
