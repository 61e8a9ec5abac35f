"""Simulates a training on a host and a device, and writes its trace together with the answer.

The host runs one loop: wait for a batch, launch kernels one after another, perhaps read a value, perhaps stall. The
device runs what was launched in order. Each kernel begins when it was launched and the one before it has ended, so
every idle moment has one known cause: what the host did until the launch returned.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from tests.support.traces import Trace

LAUNCH_US = 5  # one call of cudaLaunchKernel
START_US = 2  # from the begin of a launch to the earliest begin of its kernel
KERNEL = "ampere_sgemm_128x64_tn"


@dataclass(frozen=True)
class Loop:
    """What one step of the simulated training does; us."""

    steps: int = 4
    kernels: int = 10  # of each step
    kernel_us: int = 200
    host_us: int = 20  # of one operator, its launch included
    loader_us: int = 0  # wait for a batch before the step's operators
    read: bool = False  # a blocking read at the end of the step
    first_stall_us: int = 0  # the first operator of the first step takes so much longer
    stall_us: int = 0  # the same in each step
    is_marked: bool = True  # by the profiler
    loses: frozenset[int] = frozenset()  # launches, by number, whose kernels are not in the trace
    inputs: Mapping[str, object] = field(default_factory=dict)  # of each operator, as the profiler records them
    operator: str = "aten::mm"
    jitter_us: int = 0  # kernels of every other step take so much longer


@dataclass
class Answer:
    """What is true of the simulated training; us."""

    busy_us: int = 0
    span_us: int = 0
    launches: int = 0
    idle_us: Counter = field(default_factory=Counter)  # between works, by what the host did
    before_us: int = 0  # from the begin of the loop to the first work
    after_us: int = 0  # from the last work to the end of the loop


def simulated(loop: Loop, rank: int = 0, world_size: int = 1) -> tuple[Trace, Answer]:
    """Return the trace of a loop, and the answer."""
    top = {"distributedInfo": {"rank": rank, "world_size": world_size}} if world_size > 1 else {}
    trace, answer = Trace(**top), Answer()
    now, free, first = 0, None, None  # the host's clock; when the device has done everything; its first work
    for step in range(loop.steps):
        begin, cause = now, "launch-bound"
        if loop.loader_us:
            trace.mark("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", now, loop.loader_us)
            now, cause = now + loop.loader_us, "data loader"
        for kernel in range(loop.kernels):
            stall = (loop.stall_us + (0 if step else loop.first_stall_us)) if kernel == 0 else 0
            trace.op(loop.operator, now, loop.host_us + stall, **loop.inputs)
            launch = now + loop.host_us + stall - LAUNCH_US
            at = max(launch + START_US, free or 0)
            launched = {} if answer.launches in loop.loses else {"launched": (launch, LAUNCH_US)}
            if launched:
                kernel_us = loop.kernel_us + loop.jitter_us * (step % 2)
                trace.kernel(KERNEL, at, kernel_us, **launched)
                if free is not None and at > free:
                    answer.idle_us["host stall" if stall else cause] += at - free
                first = at if first is None else first
                answer.busy_us += kernel_us
                free = at + kernel_us
            else:
                trace.call("cudaLaunchKernel", launch, LAUNCH_US, correlation=1_000_000 + answer.launches)
            answer.launches += 1
            now, cause = now + loop.host_us + stall, "launch-bound"
        if loop.read:
            end = max(now, free or 0) + 1
            trace.op("aten::item", now, end - now).call("cudaMemcpyAsync", now, end - now)
            now = end
        if loop.is_marked:
            trace.step(step, begin, now - begin)
    answer.span_us = (free or 0) - (first or 0)
    answer.before_us, answer.after_us = first or 0, max(0, now - (free or 0))
    return trace, answer
