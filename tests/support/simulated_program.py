"""Simulates a training on two host threads and two streams, in which each duration can really be changed.

The truth of "if this were twice as fast" is the simulation with the shorter duration.
"""

from collections import Counter
from dataclasses import dataclass

from tests.support.traces import AUTOGRAD, LOOP, Trace

START_US = 2  # from the begin of a launch to the earliest begin of its kernel
HANDOVER_US = 3  # from one thread to the other
RETURN_US = 4  # from the end of the device's work to the return of the call that waits for it
CHECK_US = 1  # of a call that waits, if there is nothing to wait for
SIDE = 20  # stream of the collective
KERNEL, COLLECTIVE = "ampere_sgemm_128x64_tn", "ncclDevKernel_AllReduce_Sum_f32_RING_LL"
FORWARD, BACKWARD = "aten::mm", "autograd::engine::evaluate_function: MmBackward0"


@dataclass(frozen=True, slots=True)
class Program:
    """What one step does; us."""

    steps: int = 4
    kernels: int = 8  # of the forward pass, and of the backward pass
    kernel_us: int = 200
    host_us: int = 20  # of one operator of the forward pass; a quarter of it is the launch
    backward_us: int = 0  # of one operator of the backward pass, on a thread of its own; 0 for no backward pass
    python_us: int = 10  # between batch and forward pass
    loader_us: int = 0
    syncs: bool = False  # in the middle of the forward pass the host waits for the device
    collective_us: int = 0  # on a stream of its own, from the middle of the forward pass; its last kernel waits for it
    has_collective: bool = False


class _Run:
    def __init__(self, program: Program) -> None:
        self.program = program
        self.trace = Trace()
        self.now = 0
        self.free: Counter[int] = Counter()  # when each stream has done everything

    def work(self, op, host_us, kernel, kernel_us, stream=7, after=0, tid=LOOP) -> None:
        """An operator that launches a kernel at its end."""
        launch_us = host_us / 4
        self.trace.op(op, self.now, host_us, tid=tid)
        self.now += host_us
        begin = self.now - launch_us
        at = max(begin + START_US, self.free[stream], after)
        self.trace.kernel(kernel, at, kernel_us, stream=stream, launched=(begin, launch_us), tid=tid)
        self.free[stream] = at + kernel_us

    def wait(self) -> None:
        """A call that returns when all work has ended."""
        until = max(self.free.values())
        end = self.now + CHECK_US if until <= self.now else until + RETURN_US
        self.trace.call("cudaDeviceSynchronize", self.now, end - self.now)
        self.now = end

    def step(self, number: int) -> None:
        program, begin = self.program, self.now
        if program.loader_us:
            self.trace.mark("enumerate(DataLoader)#_Iter.__next__", self.now, program.loader_us)
            self.now += program.loader_us
        self.now += program.python_us
        for i in range(program.kernels):
            after = 0
            if i == program.kernels // 2:
                if program.has_collective:
                    self.work("c10d::allreduce_", 8, COLLECTIVE, program.collective_us, SIDE, self.free[7])
                if program.syncs:
                    self.wait()
            if i == program.kernels - 1 and program.has_collective:
                self.trace.call("cudaStreamWaitEvent", self.now, 1)
                self.now += 1
                after = self.free[SIDE]
            self.work(FORWARD, program.host_us, KERNEL, program.kernel_us, after=after)
        if program.backward_us:
            self.now += HANDOVER_US
            for _ in range(program.kernels):
                self.work(BACKWARD, program.backward_us, KERNEL, program.kernel_us, tid=AUTOGRAD)
            self.now += HANDOVER_US
            self.trace.op("aten::add_", self.now, 5)
            self.now += 5
        self.trace.step(number, begin, self.now - begin)


def simulated_program(program: Program) -> tuple[Trace, float]:
    """Return the trace, and when the program and its device had finished; us."""
    run = _Run(program)
    for number in range(program.steps):
        run.step(number)
    return run.trace, max(run.now, *run.free.values())
