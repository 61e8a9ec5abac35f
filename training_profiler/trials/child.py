"""The part of a trial that runs in the user's process: applies the changes, and runs the training block by block.

At the end of each block of steps the training thread hands over what it measured and waits for the next block, so that
one training runs while the others of the session wait. It ends when the session ends it, in the middle of an epoch.
"""

import importlib
import json
import os
import random
import resource
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import pairwise
from math import inf
from pathlib import Path
from statistics import mean, median
from time import perf_counter_ns, process_time_ns, thread_time_ns
from typing import Any, Final, NamedTuple

import psutil

from training_profiler.base.backends import BACKENDS
from training_profiler.base.units import NS_PER_S
from training_profiler.instrumentation.patching import Patches
from training_profiler.instrumentation.repeated_samples import sample_prints
from training_profiler.model.loader_workers import MOST_PRINTS
from training_profiler.recording.data_loader import batch_size
from training_profiler.recording.event_codes import STEP_END
from training_profiler.recording.implementation import python_implementation
from training_profiler.recording.recorder import Recorder
from training_profiler.runtime.instrumentation import Instrumentation
from training_profiler.sampling.compilations import Compilations
from training_profiler.sampling.run_queue import ran_and_waited_ns
from training_profiler.trials.treatment import around

SEED: Final = 20_261_122  # unlikely to be the program's own
LONGEST_ADDRESS: Final = 100  # bytes; Linux has room for 108
DRAIN_EVERY: Final = 64  # steps
LONG: Final = 3  # times as long as the median step of a block
FEW_OTHERS: Final = 0.05  # of a thread's CPU time, of all others in its process: they did not make it wait for a CPU
THREAD: Final = Path("/proc/thread-self")
FAILED_STATUS: Final = 70  # EX_SOFTWARE of sysexits.h


class ChildPlan(NamedTuple):
    """What a trial's process is to do; a file of JSON hands it over."""

    socket: str  # path of the session's socket
    table: str  # module that has TREATMENTS
    treatments: list[str]  # names of the changes to apply
    warmup: int  # steps before the first block
    is_profiled: bool = False  # by the profiler, as any run; no blocks then


class ChildSession:
    """The connection to the session that runs the trials: one line of JSON for each message."""

    def __init__(self, path: str) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        with address_of(path) as address:
            self._socket.connect(address)
        self._lines = self._socket.makefile("r", encoding="utf-8")

    def send(self, **message: object) -> None:
        """Send a message."""
        self._socket.sendall(json.dumps(message).encode() + b"\n")

    def next_block(self) -> int:
        """Wait for the number of steps in the next block; end this process where there is none."""
        line = self._lines.readline()
        if not line:  # the session has ended
            os._exit(0)
        return int(json.loads(line)["steps"])


@contextmanager
def address_of(path: str) -> Iterator[str]:
    """Yield a path of a socket that is short enough for an address, which has room for about 100 bytes."""
    if len(os.fsencode(path)) <= LONGEST_ADDRESS:
        yield path
        return
    folder = os.open(os.path.dirname(path), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{folder}/{os.path.basename(path)}"
    finally:
        os.close(folder)


class OwnChildren:
    """The processes that this process has started, and those that they have started."""

    def __init__(self) -> None:
        self.known: list[psutil.Process] = []

    def stop(self) -> bool:
        """Stop all of them; return whether they are known, so that ``resume`` lets them go on.

        The session stops them as well, but only once it has received the block: workers would make batches meanwhile.
        """
        send_signal(signal.SIGSTOP, self.known)  # looking for them takes a while
        try:
            self.known = psutil.Process().children(recursive=True)
        except (psutil.Error, OSError):
            return False
        send_signal(signal.SIGSTOP, self.known)
        return True

    def resume(self) -> None:
        """Let them go on, those too that were started before the session stopped this process."""
        with suppress(psutil.Error, OSError):  # looking for them takes a while, in which none of them runs
            self.known = psutil.Process().children(recursive=True)
        send_signal(signal.SIGCONT, self.known)


def send_signal(number: int, processes: Iterable[psutil.Process]) -> None:
    """Send a signal to those of the processes that still run."""
    for process in processes:
        with suppress(psutil.Error, OSError):  # it has ended
            process.send_signal(number)


def read_cpu() -> tuple[int, int | None]:
    """Return the CPU time of this process, and how long this thread has waited for a CPU; None if unknown."""
    figures = ran_and_waited_ns(THREAD)
    return process_time_ns(), None if figures is None else figures[1]


@dataclass
class BlockRunner:
    """Counts the steps of a training, and stops it at the end of each block."""

    plan: ChildPlan
    torch: Any  # as imported by the program
    connect: Callable[[], Any]  # returns the connection to the session
    clock: Callable[[], int] = perf_counter_ns
    children: Any = field(default_factory=OwnChildren)  # that the training has started, such as a loader's workers
    compilations: Compilations = field(default_factory=Compilations)
    thread_clock: Callable[[], int] = thread_time_ns
    read_cpu: Callable[[], tuple[int, int | None]] = read_cpu

    def __post_init__(self) -> None:
        self._session: Any = None
        self._left = self.plan.warmup
        self._block = 0  # steps of the block under way; 0 in the warm-up
        # Ends of what is measured, the first step of a block and those after it; CPU time of the thread there.
        self._ends_ns, self._ran_ns = [self.clock()], [self.thread_clock()]
        self._cpu = [self.read_cpu()]
        self._losses: list[list[Any]] = [[]]  # of each step, as tensors
        self._samples = [0]  # of each step
        self._prints: list[int] = []  # of the first samples

    def note_loss(self, tensors: Any) -> None:
        """Keep what a backward pass starts from, for the end of the block: reading it now could wait for a device."""
        for tensor in tensors if isinstance(tensors, (list, tuple)) else (tensors,):
            value = tensor.detach()
            self._losses[-1].append(value.clone() if value.numel() == 1 else value.double().sum())

    def note_batch(self, batch: object) -> None:
        """Count the samples of a batch; keep the fingerprints of the first ones of the training."""
        self._samples[-1] += batch_size(batch) or 0
        if len(self._prints) < MOST_PRINTS:
            self._prints += sample_prints(batch)

    def end_step(self) -> None:
        """Count a step; at the end of a block, report it and wait for the next."""
        self._losses.append([])
        self._samples.append(0)
        self._left -= 1
        is_first = bool(self._block) and self._left == self._block - 1
        if is_first or self._left <= 0:
            self._wait_for_devices()
            self._cpu = [self._cpu[-1], self.read_cpu()]
        self._ends_ns.append(self.clock())
        self._ran_ns.append(self.thread_clock())
        if is_first:
            del self._ends_ns[:-1], self._ran_ns[:-1]  # the first step of a block refills the caches
        if self._left > 0:
            return
        elapsed_ns = self._ends_ns[-1] - self._ends_ns[0]
        holds = self.children.stop()
        if self._session is None:
            self._session = self.connect()
        steps_ns = [after - before for before, after in pairwise(self._ends_ns)]
        step_s, typical_s = self._times_s(steps_ns) if self._block else (None, None)
        alone_ns = self._alone_ns(steps_ns) if self._block else None
        distributed = self.torch.distributed
        is_distributed = distributed.is_available() and distributed.is_initialized()
        self._session.send(
            event="block",
            step_s=step_s,
            typical_s=typical_s,
            alone_s=alone_ns and self._times_s(alone_ns),
            warmup_s=None if self._block else elapsed_ns / NS_PER_S,
            losses=[[float(value.double().item()).hex() for value in step] for step in self._losses[:-1]],
            samples=median(self._samples[:-1]),
            prints=self._prints[:MOST_PRINTS],
            memory_bytes=self._memory_bytes(),
            compiled=self._compiled(),
            seed=int(self.torch.initial_seed()),
            holds=holds,
            rank=distributed.get_rank() if is_distributed else 0,
            world_size=distributed.get_world_size() if is_distributed else 1,
        )
        del self._losses[:-1], self._samples[:-1]
        self._block = self._left = max(2, self._session.next_block())
        self.children.resume()

    def _times_s(self, steps_ns: Sequence[float]) -> tuple[float, float]:
        """Return the mean time of a step, and one in which a rare, long one, as with a checkpoint, counts as three.

        Where a device works, most steps may only queue their work: a step that waits for it is as typical.
        """
        most_ns = inf if any(True for _ in self._devices()) else LONG * median(steps_ns)
        return mean(steps_ns) / NS_PER_S, mean(min(each, most_ns) for each in steps_ns) / NS_PER_S

    def _alone_ns(self, steps_ns: Sequence[int]) -> list[float] | None:
        """Return the steps without the time in which their thread waited for a CPU that other programs had.

        None where that is unknown: the program's own threads or processes may have had it, or a device went on.
        """
        ran_ns = [after - before for before, after in pairwise(self._ran_ns)]
        (before_ns, waited_before), (after_ns, waited) = self._cpu
        others_ns = after_ns - before_ns - sum(ran_ns)
        if waited is None or waited_before is None or others_ns > FEW_OTHERS * sum(ran_ns) or self.children.known:
            return None
        if any(True for _ in self._devices()):
            return None
        off_ns = [max(0, step - ran) for step, ran in zip(steps_ns, ran_ns, strict=True)]
        part = min(1.0, (waited - waited_before) / max(1, sum(off_ns)))
        return [step - part * off for step, off in zip(steps_ns, off_ns, strict=True)]

    def _compiled(self) -> tuple[float, int]:
        """Return the seconds that torch.compile took until now, and how often it compiled the same code again."""
        facts = self.compilations.facts()
        return (0.0, 0) if facts is None else (facts.seconds, facts.recompiled)

    def _wait_for_devices(self) -> None:
        for device in self._devices():
            device.synchronize()

    def _devices(self) -> Iterator[Any]:
        for backend in BACKENDS:
            device = getattr(self.torch, backend.kind, None)
            if device is not None and hasattr(device, "synchronize") and backend.is_ready(self.torch, device):
                yield device

    def _memory_bytes(self) -> int:
        """Return the most memory until now: of a device that is in use, else of this process."""
        of_devices = [d.max_memory_allocated() for d in self._devices() if hasattr(d, "max_memory_allocated")]
        unit = 1 if sys.platform == "darwin" else 1024
        return max(of_devices, default=0) or resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def start(path: str) -> None:
    """Begin the trial whose plan is in the file ``path``, right after the import of torch."""
    plan = _read_plan(path)
    torch, numpy = sys.modules["torch"], sys.modules.get("numpy")
    try:
        torch.manual_seed(SEED)  # a program that sets no seed sees the same random numbers in each trial
        random.seed(SEED)
        if numpy is not None:
            numpy.random.seed(SEED)
        apply(plan.table, plan.treatments)
        if not plan.is_profiled:
            _instrument(BlockRunner(plan, torch, lambda: ChildSession(plan.socket)), torch)
    except Exception as error:
        ChildSession(plan.socket).send(event="failed", reason=f"{type(error).__name__}: {error}")
        os._exit(FAILED_STATUS)


def report_read(path: str) -> None:
    """Report to the session that the program reads standard input. The bootstrap calls it."""
    ChildSession(_read_plan(path).socket).send(event="stdin")


def _read_plan(path: str) -> ChildPlan:
    with open(path, encoding="utf-8") as file:
        return ChildPlan(**json.load(file))


def apply(table: str, names: Sequence[str]) -> None:
    """Apply the changes of these names, which ``TREATMENTS`` of the module ``table`` has, to this process."""
    treatments = {each.name: each for each in importlib.import_module(table).TREATMENTS} if names else {}
    for name in names:
        treatments[name].install(Patches(), sys.modules["torch"])


def _instrument(runner: BlockRunner, torch: Any) -> None:
    pid = os.getpid()
    runner.compilations.start()
    recorder = Recorder(implementation=python_implementation("it is a trial's"))
    recorder.listen(recorder.discard)
    threads: set[int] = set()
    steps = 0

    def end_step(at_ns: int) -> None:
        nonlocal steps
        steps += 1
        recorder.mark(STEP_END, at_ns)
        if steps % DRAIN_EVERY == 0:
            recorder.drain()
        runner.end_step()

    def begin() -> Callable[[int], None] | None:
        data = sys.modules.get("torch.utils.data")
        is_worker = data is not None and data.get_worker_info() is not None
        if is_worker or os.getpid() != pid:
            return None
        threads.add(threading.get_ident())
        return end_step

    def backward(original: Any, *args: Any, **kwargs: Any) -> Any:
        if threading.get_ident() in threads or not threads:
            with suppress(Exception):  # of tensors that are not torch's own
                runner.note_loss(args[0] if args else kwargs.get("tensors", ()))
        return original(*args, **kwargs)

    def fetch(original: Any, *args: Any) -> Any:
        batch = original(*args)
        if threading.get_ident() in threads or not threads:
            with suppress(Exception):  # of objects that are not torch's own
                runner.note_batch(batch)
        return batch

    Patches().replace(torch.autograd, "backward", around(backward))
    loaders = importlib.import_module("torch.utils.data.dataloader")
    Patches().replace(loaders._BaseDataLoaderIter, "__next__", around(fetch))
    Instrumentation(recorder, begin).install(torch)
