"""Simulates a training on several ranks that meet in collectives, in which each rank's durations can be changed.

The truth of "if rank 2's forward were twice as fast" is the simulation with the shorter duration.
"""

from collections import Counter
from collections.abc import Generator, Sequence
from dataclasses import dataclass

from tests.support.traces import AUTOGRAD, LOOP, Trace

START_US = 2  # from the begin of a launch to the earliest begin of its kernel
HANDOVER_US = 3  # from one thread to the other
RETURN_US = 4  # from the end of the device's work to the return of the call that waits for it
SIDE = 20  # stream of the collectives
KERNEL, BACKWARD_KERNEL = "ampere_sgemm_128x64_tn", "ampere_sgemm_128x64_nt"
COLLECTIVE = "ncclDevKernel_AllReduce_Sum_f32_RING_LL"
FORWARD, BACKWARD = "aten::mm", "autograd::engine::evaluate_function: MmBackward0"


@dataclass(frozen=True, slots=True)
class Rank:
    """What one step does on a rank; us."""

    kernels: int = 5  # of the forward pass, and of the backward pass
    kernel_us: float = 200  # of the forward pass
    backward_us: float = 300  # a kernel of the backward pass
    host_us: float = 20  # of one operator of either pass
    loader_us: float = 0
    slow_steps: tuple[int, ...] = ()  # in which the kernels of the forward pass take three times as long
    clock_us: int = 0  # what the rank's clock is ahead of the others'


@dataclass(frozen=True, slots=True)
class Job:
    """Ranks that reduce their gradients together."""

    ranks: Sequence[Rank]
    steps: int = 3
    transfer_us: int = 100  # of a collective, from the arrival of the last rank
    groups: Sequence[Sequence[int]] = ()  # ranks that meet after the forward pass; the other ranks do not wait then
    with_groups: bool = True  # whether the trace has process groups and numbers


class _Run:
    def __init__(self, job: Job, number: int) -> None:
        self.job, self.number, self.rank = job, number, job.ranks[number]
        self.trace = Trace(distributedInfo={"rank": number, "world_size": len(job.ranks)})
        self.now = 0.0
        self.free = {7: 0.0, SIDE: 0.0}
        self.met: Counter[tuple[int, ...]] = Counter()  # a number for each collective of a group

    def launched(
        self, op, kernel_us, name, host_us, stream=7, after=0.0, tid=LOOP
    ) -> tuple[float, tuple[float, float]]:
        """An operator that launches at its end; returns when its kernel can begin, and the launch."""
        clock = self.rank.clock_us
        self.trace.op(op, self.now + clock, host_us, tid=tid)
        self.now += host_us
        launch = (self.now - host_us / 4, host_us / 4)
        at = max(launch[0] + START_US, self.free[stream], after)
        if kernel_us:
            self.kernel(name, at, kernel_us, stream, launch, tid)
        return at, launch

    def kernel(self, name, at, length, stream, launch, tid, **args) -> None:
        clock = self.rank.clock_us
        launched = (launch[0] + clock, launch[1])
        self.trace.kernel(name, at + clock, length, stream=stream, launched=launched, tid=tid, **args)
        self.free[stream] = at + length

    def collective(self, members: Sequence[int]) -> Generator[tuple[tuple[int, ...], float], float]:
        """A collective on a stream of its own, after all work so far; later work waits for it."""
        at, launch = self.launched("c10d::allreduce_", 0, "", 8, SIDE, self.free[7])
        end = yield tuple(members), at
        group = {
            "Process Group Name": str(members),
            "Process Group Ranks": list(members),
            "Seq": self.met[tuple(members)],
        }
        self.met[tuple(members)] += 1
        args = group if self.job.with_groups else {}
        self.kernel(COLLECTIVE, at, end - at, SIDE, launch, LOOP, **args)
        self.trace.call("cudaStreamWaitEvent", self.now + self.rank.clock_us, 1)
        self.now += 1
        self.free[7] = max(self.free[7], end)

    def steps(self) -> Generator[tuple[tuple[int, ...], float], float]:
        for number in range(self.job.steps):
            yield from self.step(number)

    def step(self, number: int) -> Generator[tuple[tuple[int, ...], float], float]:
        rank, begin, clock = self.rank, self.now, self.rank.clock_us
        if rank.loader_us:
            self.trace.mark("enumerate(DataLoader)#_Iter.__next__", self.now + clock, rank.loader_us)
            self.now += rank.loader_us
        slower = 3 if number in rank.slow_steps else 1
        for _ in range(rank.kernels):
            self.launched(FORWARD, rank.kernel_us * slower, KERNEL, rank.host_us)
        for group in self.job.groups:
            if self.number in group:
                yield from self.collective(group)
        self.now += HANDOVER_US
        for _ in range(rank.kernels):
            self.launched(BACKWARD, rank.backward_us, BACKWARD_KERNEL, rank.host_us, tid=AUTOGRAD)
        self.now += HANDOVER_US
        yield from self.collective(range(len(self.job.ranks)))
        self.launched("Optimizer.step#SGD.step", 50, "multi_tensor_apply_kernel", rank.host_us)
        end = max(self.free.values()) + RETURN_US
        self.trace.call("cudaDeviceSynchronize", self.now + clock, end - self.now)
        self.now = end
        self.trace.step(number, begin + clock, self.now - begin)


def simulated_job(job: Job) -> tuple[list[Trace], float]:
    """Return a trace for each rank, and when all of them had finished; us."""
    runs = [_Run(job, number) for number in range(len(job.ranks))]
    waiting, going = {}, {}
    for run in runs:
        going[run.number] = steps = run.steps()
        waiting[run.number] = next(steps)
    while waiting:
        members, _ = next(asked for asked in waiting.values() if all(waiting[rank][0] == asked[0] for rank in asked[0]))
        end = max(waiting[rank][1] for rank in members) + job.transfer_us
        for rank in members:
            try:
                waiting[rank] = going[rank].send(end)
            except StopIteration:
                del waiting[rank]
    return [run.trace for run in runs], max(run.now for run in runs)
