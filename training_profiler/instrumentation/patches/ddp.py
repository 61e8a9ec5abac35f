"""Seam: DistributedDataParallel's exchange of gradients, which happens in C++ and is known from its own statistics."""

import functools
import importlib
import sys
import threading
import time
import weakref
from collections import Counter, deque
from collections.abc import Callable, Iterable
from typing import Any, Final, NamedTuple, Protocol

from training_profiler.instrumentation.patches.sync_points import SyncPoints
from training_profiler.instrumentation.patching import Patches
from training_profiler.recording.gradient_sync import BLOCK_STEPS, GradientSyncTotals, is_compared
from training_profiler.recording.section import Clock


class DdpReading(NamedTuple):
    """What one module said at one time."""

    exchanged: GradientSyncTotals
    begin_ns: int  # of the exchange that was seen, by the wall clock
    end_ns: int
    key: str  # the same on all ranks
    is_first: bool  # it is the first module, and of all ranks


class DdpModule:
    """One DDP module."""

    def __init__(self, module: Any, number: int, backwards: int | None) -> None:
        self.reference: Callable[[], Any] = weakref.ref(module)
        self.is_on_host = module.device.type == "cpu"
        self._number = number
        self._is_of_world = module.process_group.size() == sys.modules["torch"].distributed.get_world_size()
        self._iteration = 0
        self._begin_ns = 0
        self._backwards = backwards
        if self.is_on_host and hasattr(module, "_set_ddp_runtime_logging_sample_rate"):
            # By default it looks at one iteration of a hundred. On an accelerator each look waits for the device.
            module._set_ddp_runtime_logging_sample_rate(1)

    def read(self, backwards: int | None) -> DdpReading | None:
        """Return what was exchanged since this was called last; None where nothing was."""
        module = self.reference()
        data = {"iteration": 0} if module is None else module._get_ddp_logging_data()  # private
        iteration = data["iteration"]  # forward passes that asked for an exchange; it may be that none followed
        if iteration < 1 or iteration == self._iteration:
            return None
        passes, self._iteration = iteration - self._iteration, iteration
        if backwards is not None and self._backwards is not None:  # some forward passes may share one
            passes = min(passes, backwards - self._backwards)
        self._backwards = backwards
        begin_ns, begin_before_ns = data["backward_comm_time_start"], self._begin_ns
        self._begin_ns = begin_ns
        end_ns = data["backward_comm_time_end"]
        if not begin_ns or begin_ns == begin_before_ns:  # it shows the one that is counted already
            return None
        if self.is_on_host:
            total_ns, hidden_ns = end_ns - begin_ns, data["backward_compute_time_end"] - begin_ns
        else:  # these are by the device's clock
            total_ns, hidden_ns = data["backward_comm_time"], data["backward_compute_comm_overlap_time"]
        if total_ns < 0:  # begin and end are of two exchanges
            return None
        count, hidden_ns = max(1, passes), min(max(0, hidden_ns), total_ns)
        exchanged = GradientSyncTotals(count, 1, count * total_ns, count * hidden_ns, self.is_on_host)
        key = f"ddp{self._number}:{iteration}"
        return DdpReading(exchanged, begin_ns, end_ns, key, self._is_of_world and not self._number)


NS_BETWEEN_READS: Final = 20_000_000  # a look takes 5 to 11 us a module
MOST_KEPT: Final = 4096  # looks of which nobody has asked for the figures


class RankObservations(Protocol):
    """Where the seams that have to do with other ranks leave what they see."""

    exchange: "GradientSync"
    meetings: SyncPoints


class GradientSync:
    """What the DDP modules of this process say about themselves, in ns; read on the training thread alone.

    The figures of an exchange appear with the module's next forward pass.

    Args:
        meetings: where exchanges of all ranks are noted.
        clock: the recorder's.
        wall_clock: DDP's, the time of day in ns.
        backwards: how many backward passes there were; None where that is not known.
    """

    def __init__(
        self,
        meetings: SyncPoints,
        clock: Clock = time.perf_counter_ns,
        wall_clock: Clock = time.time_ns,
        backwards: Callable[[], int | None] = lambda: None,
    ) -> None:
        self.modules: list[DdpModule] = []
        self.why_not: str | None = None  # nothing is read any more
        self._sync_points, self._clock, self._wall_clock, self._backwards = meetings, clock, wall_clock, backwards
        self._made = 0
        self._thread = 0
        self._next_look_ns = 0
        self._taken: deque[GradientSyncTotals] = deque(maxlen=MOST_KEPT)
        self.begin_anew()

    def begin_anew(self) -> None:
        """Forget what was exchanged in a run before; its modules may go on."""
        self._steps = Steps()
        self._idle_before = 0  # no step before this one, from the last on, is compared
        self._taken.clear()

    def watch(self, module: Any) -> None:
        """Read the statistics of ``module`` from now on."""
        if self.why_not is None:
            try:
                self.modules.append(DdpModule(module, self._made, self._backwards()))
                self._made += 1
            except Exception as error:
                self._give_up(error)

    def step_ended(self, step: int, end_ns: int) -> None:
        """Read where that is due after ``step``, counted from 0: now and then, and for each step that ranks compare."""
        if end_ns < self._next_look_ns and 0 < step < self._idle_before:
            return
        # What is seen after a step may be of the one before, and is what was not seen after that.
        if end_ns >= self._next_look_ns or any(map(is_compared, (step, step + 1, max(0, step - 1)))):
            self._next_look_ns = end_ns + NS_BETWEEN_READS
            self._thread = threading.get_ident()
            self._guarded(lambda: self._read_after(step, end_ns))
        else:
            self._idle_before = (step // BLOCK_STEPS + 1) * BLOCK_STEPS - 1

    def read(self) -> None:
        """Take the statistics as they are now."""
        if not self._thread or threading.get_ident() == self._thread:
            self._guarded(lambda: self._take_in(self._figures(), ()))

    def _guarded(self, work: Callable[[], None]) -> None:
        try:
            work()
        except Exception as error:
            self._give_up(error)

    def _figures(self) -> list[DdpReading]:
        if any(module.reference() is None for module in self.modules):
            self.modules = [module for module in self.modules if module.reference() is not None]
        backwards = self._backwards()
        stats = (module.read(backwards) for module in self.modules)
        return [one for one in stats if one is not None]

    def _read_after(self, step: int, end_ns: int) -> None:
        stats = self._figures()
        self._steps.ended(step, self._wall_clock() - (self._clock() - end_ns))
        for one in stats:
            of_step = self._steps.add(one.begin_ns, one.exchanged.exposed_ns)
            if one.exchanged.is_on_host and one.is_first and is_compared(of_step):
                self._sync_points.add("ddp", of_step, one.key, one.begin_ns, one.end_ns)
        known = self._steps.take()
        are_on_host = all(module.is_on_host for module in self.modules)
        self._take_in(stats, [one for one in known if is_compared(one[0])] if are_on_host else ())

    def _take_in(self, stats: list[DdpReading], of_steps: Iterable[tuple[int, int]]) -> None:
        new = _sum(one.exchanged for one in stats)._replace(of_steps=tuple(of_steps))
        if new.exchanges or new.of_steps:
            self._taken.append(new)

    def _give_up(self, error: Exception) -> None:
        self.modules = []
        self.why_not = f"{type(error).__name__}: {error}"

    def take(self) -> GradientSyncTotals:
        """Return what was exchanged since this was called last.

        Of single steps it tells those that ranks compare; where one has several exchanges, the one seen stands for all.
        """
        return _sum([self._taken.popleft() for _ in range(len(self._taken))])

    def note(self) -> str | None:
        """Return a sentence on why it is not measured; None where it is."""
        return None if self.why_not is None else f"DDP's exchange of gradients is not measured: {self.why_not}"


class Steps:
    """Which step an exchange was part of: the first that ended after it had begun. Wall clock, in ns.

    Steps may be marked later than they ended, so that the exchange of a step shows at its mark or at the next.
    """

    def __init__(self) -> None:
        self._ends: list[tuple[int, int]] = []  # (step, end) of steps in a row
        self._known_from = 0  # the first of which everything was seen
        self._ns: Counter[int] = Counter()

    def ended(self, step: int, end_ns: int) -> None:
        """Note the end of ``step``; where that before was not noted, of none before is anything known."""
        if not self._ends or self._ends[-1][0] != step - 1:
            self._known_from = step + 1 if step else 0
            self._ends.clear()
            self._ns.clear()
        self._ends = [*self._ends[-2:], (step, end_ns)]

    def add(self, begin_ns: int, ns: int) -> int:
        """Add an exchange and return its step."""
        step = next((step for step, end_ns in self._ends if begin_ns < end_ns), self._ends[-1][0] + 1)
        self._ns[step] += ns
        return step

    def take(self) -> list[tuple[int, int]]:
        """Return (step, ns) of the step before the one that was noted last, as far as it is known."""
        step = self._ends[-1][0] - 1
        return [(step, self._ns.pop(step, 0))] if step >= self._known_from else []


def _sum(parts: Iterable[GradientSyncTotals]) -> GradientSyncTotals:
    """Return all of it together."""
    parts = list(parts)
    return GradientSyncTotals(
        exchanges=sum(part.exchanges for part in parts),
        sampled=sum(part.sampled for part in parts),
        total_ns=sum(part.total_ns for part in parts),
        hidden_ns=sum(part.hidden_ns for part in parts),
        is_on_host=all(part.is_on_host for part in parts),
        of_steps=tuple(step for part in parts for step in part.of_steps),
    )


def install(patches: Patches, watch: RankObservations, torch: Any) -> None:
    """Note the modules as they are made; read them before their process group goes."""
    if not torch.distributed.is_available():
        return

    def make(original: Any) -> Any:
        @functools.wraps(original)
        def _ddp_init_helper(self: Any, *args: Any, **kwargs: Any) -> Any:
            made = original(self, *args, **kwargs)
            watch.exchange.watch(self)
            return made

        return _ddp_init_helper

    def make_destroy(original: Any) -> Any:
        @functools.wraps(original)
        def destroy_process_group(*args: Any, **kwargs: Any) -> Any:
            watch.exchange.read()
            return original(*args, **kwargs)

        return destroy_process_group

    module = importlib.import_module("torch.distributed.distributed_c10d")
    # Private, the last that __init__ does: around that itself, its warnings would name our line and not the program's.
    patches.replace(torch.nn.parallel.DistributedDataParallel, "_ddp_init_helper", make)
    patches.replace(module, "destroy_process_group", make_destroy)
    patches.repeat(module, torch.distributed, "destroy_process_group")
