"""Rules about the host: batches, launches, reads, copies, allocations."""

import operator
from typing import Final

from training_profiler.base.units import NS_PER_MS, counted
from training_profiler.diagnosis.finding import Finding
from training_profiler.diagnosis.registry import Saving
from training_profiler.trace_analysis import gaps
from training_profiler.trace_analysis.gaps import Gap
from training_profiler.trace_analysis.rules_registry import (
    AT_ONCE,
    BATCHES,
    DEVICE,
    DIRECTIONS,
    OPERATORS,
    RULES,
    THREE_STEPS,
    TIMED,
    WHOLE,
    found,
)
from training_profiler.trace_analysis.trace import Trace

MOST_STALLS: Final = 3  # that a finding names
MAKING: Final = ("aten::empty", "aten::empty_strided")
TENSORS_NEEDED: Final = 100
EACH: Final = 0.3  # of the tensors; some are on the host, and an operator in C++ makes some without its name
SHORT_GAPS: Final = "gaps under 30 us"
OF_THE_HOST: Final = (*gaps.CALLS, gaps.LAUNCH_BOUND, gaps.PYTHON, gaps.HOST_STALL, SHORT_GAPS)
MOST_REPLAYED: Final = 0.5  # of the device's work; graphs are in use then
BETWEEN_REPLAYS: Final = (
    "Most work is replayed as graphs already: do what the host does between replays while the device works, or less of "
    "it; use larger batches"
)


@RULES.rule("data-loading-bound", threshold=0.15, needs=(BATCHES,), is_measured=True, fires=operator.ge)
def data_loading(analysis: Trace, _: float) -> Finding | None:
    """Flag waits for batches of 15 % of the time or more, and a DataLoader without workers."""
    share = analysis.data_share
    if share is None:
        return None
    is_synchronous = any("_SingleProcessDataLoaderIter" in name for name in analysis.waiting.data_names)
    how = " from a DataLoader without workers" if is_synchronous else ""
    reason = " (0 loads batches in the training process)" if is_synchronous else ""
    waited_ns = sum(analysis.waiting.data_ns)
    saved_ns = analysis.gap_ns(gaps.DATA_LOADER) if analysis.has_gpu and analysis.is_whole else waited_ns
    saved_ns = max(0, min(saved_ns, waited_ns) - analysis.waiting.worker_start_ns)  # more workers start no faster
    waits = f"{share:.1%} of {analysis.scope.time} is spent waiting for batches{how}"
    fix = f"Raise DataLoader(num_workers=...){reason}, then set pin_memory=True and persistent_workers=True"
    return found(waits, fix, saved_ns, share_of_step=share, waited_ms=waited_ns / NS_PER_MS)


@RULES.rule("gpu-idle", threshold=0.80, saving=Saving.UNKNOWN, needs=(DEVICE, WHOLE, AT_ONCE), fires=operator.lt)
def idle(analysis: Trace, threshold: float) -> Finding | None:
    """Flag a device that is busy for under 80 % of the steps, and name what it mostly waits for."""
    used, idle_ns = analysis.utilization, analysis.scope.total.idle_ns - analysis.recording_ns - analysis.unseen_ns
    if used is None or not analysis.is_idle_for(idle_ns, 1 - threshold):
        return None
    main, cause, fix = _main_cause(analysis, idle_ns)
    where = "the steps" if analysis.scope.is_steps else analysis.scope.time
    by_host = main in OF_THE_HOST and not (main == SHORT_GAPS and analysis.replayed_share > MOST_REPLAYED)
    low = "the CPU probably cannot keep up" if by_host else "low"
    verdict = "serious" if used < 0.5 else low if used < 0.7 else "could be higher"
    said = f"The device is busy for {used:.1%} of {where} ({verdict}){cause}"
    # The other findings split what could be saved by cause.
    return found(said, fix, utilization=used, idle_ms=idle_ns / NS_PER_MS, main_cause=main)


def _main_cause(analysis: Trace, idle_ns: int) -> tuple[str, str, str]:
    places = [place for place in analysis.idle_times if place.in_scope_ns and place.cause not in gaps.NO_IDLE_TIME]
    causes = {cause: ns for cause, ns in analysis.idle_ns_by_cause.items() if cause not in gaps.NO_IDLE_TIME}
    short_ns = idle_ns - sum(causes.values())
    main = max(causes, key=lambda cause: causes[cause], default="")
    fix = "Fix the main cause first: --view trace shows the cause of every gap"
    if short_ns > causes.get(main, 0):
        return SHORT_GAPS, f"; most of the idle time is in {SHORT_GAPS}", _fewer_launches(analysis)
    if not main:
        return "", "", fix
    said = f"; main cause of idle time: {main}"
    if main == gaps.UNKNOWN:
        said = "; for most of the idle time the trace does not show what the device waits for"
        if not analysis.operators:
            fix = "Record the host too: torch.profiler.profile(activities=[ProfilerActivity.CPU, ...], with_stack=True)"
    longest = max(places, key=lambda place: place.in_scope_ns)
    if longest.where:
        what = "gap" if longest in analysis.gaps else "idle time"
        said += f"; the longest {what}, {longest.in_scope_ns / NS_PER_MS:.1f} ms, is {longest.where}"
    return main, said, fix


def _fewer_launches(analysis: Trace) -> str:
    """Return what needs fewer launches, without what is used already or trains what is not trained."""
    if analysis.replayed_share > MOST_REPLAYED:
        return BETWEEN_REPLAYS
    compiled = 'torch.compile(mode="reduce-overhead")' if analysis.has_graphs else "torch.compile"
    replayed = [compiled] if analysis.can_compile else []
    replayed += ["CUDA graphs"] if analysis.has_graphs else []
    words = [" or ".join(replayed), "larger batches", "a fused optimizer" if analysis.has_optimizer else ""]
    return f"Use {', '.join([*filter(None, words), 'fused operators'])}"


@RULES.rule("host-stall", threshold=0.01, needs=(DEVICE, WHOLE, AT_ONCE, OPERATORS), is_measured=True)
def stalls(analysis: Trace, threshold: float) -> Finding | None:
    """Flag gaps, over 1 % of step time, of 5 ms without a launch or one launch of 1 ms, with the operators."""
    places = [place for place in analysis.idle_times if place.cause == gaps.HOST_STALL and place.in_scope_ns]
    ns = analysis.gap_ns(gaps.HOST_STALL)
    if not places or not analysis.is_idle_for(ns, threshold):
        return None
    places.sort(key=lambda place: -place.ns_of(gaps.HOST_STALL))
    named, share = ", ".join(_stall_text(place) for place in places[:MOST_STALLS]), analysis.share_of_scope(ns)
    more = f" and {len(places) - MOST_STALLS} more" if len(places) > MOST_STALLS else ""
    first_ns = sum(place.ns_of(gaps.HOST_STALL) for place in places if place.is_first_run)
    fix = "Look at what the host does there: move it off the training thread, or do it less often"
    if 2 * first_ns > ns * len(analysis.devices):
        fix = (
            "Before its first run a kernel is loaded, chosen or compiled, once in a run: record later, with "
            "torch.profiler.schedule(wait=..., warmup=...)"
        )
    stalled = (
        f"The host stalls {counted(len(places), 'time')} without launching work, and the device idles meanwhile for "
        f"{share:.1%} of {analysis.scope.time}: {named}{more}"
    )
    return found(stalled, fix, ns, share_of_step=share, stalls=len(places), first_calls_ms=first_ns / NS_PER_MS)


def _stall_text(place: Gap) -> str:
    several = ", ".join(place.stall_operators) or "short ones"
    what = place.stall_by or (f"several operators ({several})" if place.is_in_operators else "outside of operators")
    if place.where:
        what += f" {place.where}"
    elif place.stall_section:
        what += f" in {place.stall_section}"
    when = " (before the first run of a kernel)" if place.is_first_run else ""
    return f"{place.ns_of(gaps.HOST_STALL) / NS_PER_MS:.1f} ms {what}{when}"


@RULES.rule("launch-bound", threshold=0.10, needs=(DEVICE, WHOLE, AT_ONCE, OPERATORS), is_measured=True)
def launch_bound(analysis: Trace, threshold: float) -> Finding | None:
    """Flag a device that waits for the host to launch its next kernel for over 10 % of step time."""
    ns = analysis.gap_ns(gaps.LAUNCH_BOUND, gaps.PYTHON)
    if not analysis.is_idle_for(ns, threshold):
        return None
    share, count = analysis.share_of_scope(ns), analysis.kernels.short_count
    short = f" ({count} of {analysis.kernels.count} kernels take under 10 us)" if count else ""
    waits = f"The device waits for the host to launch work for {share:.1%} of {analysis.scope.time}{short}"
    saved_ns = ns - analysis.reads_gap_ns(gaps.LAUNCH_BOUND, gaps.PYTHON)
    return found(waits, _fewer_launches(analysis), saved_ns, share_of_step=share, short_kernels=count)


@RULES.rule("synchronizing-reads", threshold=0.01, needs=(DEVICE, WHOLE, OPERATORS), is_measured=True)
def reads(analysis: Trace, _: float) -> Finding | None:
    """Flag `.item()`, `.cpu()` and printing in steps that take the host over 1 % of step time."""
    share = analysis.share_of_scope(analysis.waiting.read_ns)
    calls = sum(read.count for read in analysis.waiting.reads)
    names = ", ".join(read.name for read in analysis.waiting.reads[:3])
    return found(
        f"The host waits {counted(calls, 'time')} to read from the device ({names}), for {share:.1%} of "
        f"{analysis.scope.time}",
        "Keep values on the device (.detach()) and read them every n-th step; use torch.where instead of `if tensor`",
        analysis.reads_gap_ns(),
        share_of_step=share,
        calls=calls,
    )


@RULES.rule("blocking-copies", threshold=0.10, needs=(DEVICE, WHOLE, OPERATORS), is_measured=True)
def blocking_copies(analysis: Trace, threshold: float) -> Finding | None:
    """Flag a device that is idle for over 10 % of step time while the host copies, reads aside."""
    ns = analysis.gap_ns(gaps.BLOCKING_COPY) - analysis.reads_gap_ns(gaps.BLOCKING_COPY)
    is_known = analysis.transfers.exposed_ns is not None
    copies = analysis.transfers.count if is_known else sum(copy.count for copy in analysis.copies)
    is_between_devices = analysis.copies and not copies
    if is_between_devices or not analysis.is_idle_for(ns, threshold):
        return None
    share = analysis.share_of_scope(ns)
    return found(
        f"The device idles for {share:.1%} of {analysis.scope.time} while the host copies to or from it "
        f"({'1 copy' if copies == 1 else f'{copies} copies'} recorded)",
        f"Create tensors on the device, copy few large tensors in place of many small ones{_not_blocking(analysis)}",
        ns,
        share_of_step=share,
        copies=copies,
    )


@RULES.rule("pageable-copies", threshold=0.01, needs=TIMED, work="copies")
def pageable(analysis: Trace, _: float) -> Finding | None:
    """Flag copies to the device from memory that is not pinned, over 1 % of step time."""
    ns, copies, exposed_ns = analysis.pageable.total_ns, analysis.pageable.count, analysis.transfers.exposed_ns
    share = analysis.share_of_scope(ns)
    take = "1 copy from pageable memory takes" if copies == 1 else f"{copies} copies from pageable memory take"
    unblocked = " and .to(device, non_blocking=True)" if analysis.transfers.are_blocking else ""
    saved_ns = ns if exposed_ns is None else min(ns, exposed_ns)
    fix = f"Use {analysis.pinning}{unblocked}"
    return found(f"{take} {share:.1%} of {analysis.scope.time}", fix, saved_ns, share_of_step=share)


@RULES.rule("allocations", threshold=0.01, needs=(OPERATORS,), is_measured=True)
def allocations(analysis: Trace, _: float) -> Finding | None:
    """Flag `cudaMalloc` and `cudaFree` in steps, over 1 % of step time: the allocator's cache is not enough."""
    waiting = analysis.waiting
    ns, calls, longest_ns = waiting.allocation_ns, waiting.allocations, waiting.longest_allocation_ns
    is_cuda = analysis.has_graphs
    expandable = "Set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True, do" if is_cuda else "Do"
    fix = f"{expandable} not call empty_cache() in the loop, and keep shapes constant"
    made = sum(operator.calls for operator in analysis.operators if operator.name in MAKING)
    if made >= TENSORS_NEEDED and calls / 2 >= EACH * made:  # the other half frees
        fix = (
            "Nearly each tensor gets memory from the device: the caching allocator is off "
            "(PYTORCH_NO_CUDA_MEMORY_CACHING, PYTORCH_NO_HIP_MEMORY_CACHING), or its cache is emptied again and again"
        )
    one = ""
    if 2 * longest_ns > ns:  # such a call is not what an allocator does again and again
        one = f", {longest_ns / NS_PER_MS:.1f} ms of it one call" if calls > 1 else ""
        fix = (
            "Where the device or a library is used for the first time, this call initialises it, once in a run: record "
            "later, with torch.profiler.schedule(wait=..., warmup=...)"
        )
    of_what = "of cudaMalloc and cudaFree (or HIP's)" if is_cuda else "that allocate or free memory of the device"
    share, takes = analysis.share_of_scope(ns), f"{of_what} {'takes' if calls == 1 else 'take'}"
    said = f"{counted(calls, 'call')} {takes} {share:.1%} of {analysis.scope.time}{one}"
    saved_ns = min(ns, analysis.gap_ns(gaps.ALLOCATION)) if analysis.has_gpu and analysis.is_whole else ns
    return found(said, fix, saved_ns, share_of_step=share, calls=calls, longest_call_ms=longest_ns / NS_PER_MS)


@RULES.rule("step-time-varies", threshold=0.10, saving=Saving.UNKNOWN, needs=(THREE_STEPS,), fires=lambda *_: True)
def varies(analysis: Trace, threshold: float) -> Finding | None:
    """Flag steps whose length varies by over 10 %, the first one aside, and not only because the host runs ahead."""
    variation, settled = analysis.step_variation, analysis.settled_variation
    if variation is None or settled is None or settled <= threshold:
        return None
    longest = max(analysis.steps, key=lambda step: step.wall_ns)
    first = "; it is the first recorded step, in which the recording starts" if longest is analysis.steps[0] else ""
    said = (
        f"Step time varies by {variation:.1%} over {len(analysis.steps)} steps "
        f"(longest: {longest.name}, {longest.wall_ns / NS_PER_MS:.1f} ms)"
    )
    fix = f"Compare the gaps of the longest step with those of others: data, changing shapes, allocations{first}"
    return found(said, fix, variation=variation, steps=len(analysis.steps))


@RULES.rule("data-transfer", threshold=0.10, needs=(DEVICE, WHOLE, DIRECTIONS), work="copies")
def data_transfer(analysis: Trace, _: float) -> Finding | None:
    """Flag copies between host and device that nothing hides, over 10 % of step time."""
    ns = analysis.transfers.exposed_ns or 0
    share = analysis.share_of_scope(ns)
    said = f"For {share:.1%} of {analysis.scope.time} the device does nothing but copy from or to the host"
    return found(said, _faster_transfers(analysis), ns, share_of_step=share)


def _faster_transfers(analysis: Trace) -> str:
    """Return what hides transfers, without what is done already."""
    if analysis.transfers.are_to_host:
        return "Keep results on the device, or copy them to the host every n-th step"
    if analysis.transfers.are_blocking:
        pinned = _pinned(analysis, "and ")
        return f"Use {pinned}.to(device, non_blocking=True); copy the next batch during computation"
    pinned = "" if analysis.is_pinned else f"Use {analysis.pinning}; "
    return f"{pinned}{'copy' if pinned else 'Copy'} the next batch during computation, on a stream of its own"


def _not_blocking(analysis: Trace) -> str:
    if analysis.transfers.are_blocking:
        return f", and use {_pinned(analysis, 'with ')}.to(device, non_blocking=True)"
    return "" if analysis.is_pinned else f", and use {analysis.pinning}"


def _pinned(analysis: Trace, before_next: str) -> str:
    return "" if analysis.is_pinned else f"{analysis.pinning} {before_next}"


@RULES.rule("side-work", threshold=0.05, saving=Saving.UNKNOWN)
def side_work(analysis: Trace, _: float) -> Finding | None:
    """Flag a section for metrics, logging or weight averaging that takes the host over 5 % of step time."""
    named = analysis.waiting.side_work_ns
    name = max(named, key=lambda section: named[section])
    share = analysis.share_of_scope(named[name])
    fix = "Do it every n-th step; use torch._foreach_* for norms and weight averages"
    # The gaps that it causes belong to the findings about their causes.
    return found(
        f"{name} takes {share:.1%} of {analysis.scope.time} on the host", fix, share_of_step=share, section=name
    )
