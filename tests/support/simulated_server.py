"""Simulates a server of a language model that replays a graph for each token, and writes its trace with the answer.

Per token the host launches the graph, launches a few kernels that choose the token, perhaps reads it, and then runs
Python code that schedules the next one. The device runs the graph's kernels on one stream or on two in turns, with the
same pause before each but the first: no launch is late there.
"""

from collections import Counter
from dataclasses import dataclass, field

from tests.support.traces import Trace

START_US = 2  # from the end of a launch to the earliest begin of its work
CHOOSE_US = 50  # of one operator that chooses the token
OPERATORS = 4
KERNEL, CHOICE = "ampere_sgemm_128x64_tn", "reduce_kernel"


@dataclass(frozen=True)
class Server:
    """What one token takes; us."""

    tokens: int = 6
    kernels: int = 40  # of the graph
    kernel_us: int = 50
    pause_us: int = 0  # between the kernels of the graph
    launch_us: int = 300  # of the call that launches the graph
    python_us: int = 1500
    reads: bool = True
    streams: int = 1  # of the graph; kernels alternate between them
    is_marked: bool = False


@dataclass
class Answer:
    """What is true of the server; us."""

    idle_us: Counter = field(default_factory=Counter)  # "inside" a replay, "between" replays
    end_us: float = 0


def served(server: Server) -> tuple[Trace, Answer]:
    """Return the trace, and the answer."""
    trace, answer = Trace(), Answer()
    now, free = 0, None  # the host's clock; when the device has done everything
    for token in range(server.tokens):
        begin = now
        trace.call("cudaGraphLaunch", now, server.launch_us, correlation=10_000_000 + token)
        now += server.launch_us
        at = max(now + START_US, free or 0)
        if free is not None:
            answer.idle_us["between"] += at - free
        for kernel in range(server.kernels):
            at += server.pause_us if kernel else 0
            stream = 7 + kernel % server.streams
            trace.kernel(KERNEL, at, server.kernel_us, stream=stream, correlation=10_000_000 + token)
            at += server.kernel_us
        answer.idle_us["inside"] += server.pause_us * (server.kernels - 1)
        free = at
        for _ in range(OPERATORS):
            trace.op("aten::argmax", now, CHOOSE_US)
            now += CHOOSE_US
            at = max(now + START_US, free)
            answer.idle_us["between"] += at - free
            trace.kernel(CHOICE, at, 6, launched=(now - 5, 5))
            free = at + 6
        if server.reads:
            end = max(now, free) + 1
            trace.op("aten::_local_scalar_dense", now, end - now).call("cudaStreamSynchronize", now, end - now)
            now = end
        now += server.python_us
        if server.is_marked:
            trace.step(token, begin, now - begin)
    trace.op("aten::empty", now, 1)
    answer.end_us = max(now + 1, free or 0)
    return trace, answer
