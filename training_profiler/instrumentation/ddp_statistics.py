"""Gradient synchronization of DistributedDataParallel, and moments that all ranks share.

The synchronization happens in C++, and DDP's own statistics describe it. No rank leaves a sync point, such as a barrier
of the program, before all ranks have entered it, which shows how the clocks of the hosts differ.
"""

import sys
import time
import weakref
from collections import Counter, deque
from collections.abc import Callable, Iterable
from threading import get_ident
from typing import Any, Final, NamedTuple

from training_profiler.model.ranks import BLOCK_STEPS, GradientSyncTotals, UnusedSearch, is_compared
from training_profiler.recording.section import Clock

KEPT: Final = 16  # of each kind: the first 16, and at most 16 spread over all


class SyncPoints:
    """A bounded list of sync points. Every rank keeps the same ones."""

    def __init__(self) -> None:
        # By kind: the number within it, which decides alone what is kept, a key that is the same on every rank, and ns
        # of the wall clock.
        self._kept: dict[str, list[tuple[int, str, int, int]]] = {}
        self._stride: dict[str, int] = {}  # by kind: every n-th is kept, a power of two
        self._calls = 0
        self._thread: int | None = None
        self._is_inside = False

    @property
    def kept(self) -> list[tuple[str, int, int]]:
        """(key, enter, leave), ns of the wall clock."""
        return [point[1:] for points in list(self._kept.values()) for point in points]

    def add(self, kind: str, number: int, key: str, enter_ns: int, leave_ns: int) -> None:
        """Add the sync point ``number`` of ``kind``, counted from 0, if it is one to be kept."""
        stride = self._stride.get(kind, 1)
        while number >= KEPT * stride:
            stride *= 2
        if number < KEPT or number % stride == 0:
            self._stride[kind] = stride
            before = [point for point in self._kept.get(kind, ()) if point[0] < KEPT or point[0] % stride == 0]
            self._kept[kind] = [*before, (number, key, enter_ns, leave_ns)]

    def call_begins(self) -> int | None:
        """Count a collective call of all ranks. Return its number, or None for a call inside another.

        All ranks make these calls in the same order within a thread, but not across threads. So only those of the
        first thread are counted.
        """
        ident = get_ident()
        if self._thread is None:
            self._thread = ident
        if self._is_inside or self._thread != ident:
            return None
        self._is_inside = True
        self._calls += 1
        return self._calls - 1

    def call_ends(self, number: int, enter_ns: int | None) -> None:
        """Add the finished call; ``enter_ns`` is None if it failed."""
        self._is_inside = False
        if enter_ns is not None:
            self.add("all", number, f"all:{number}", enter_ns, time.time_ns())


class DdpReading(NamedTuple):
    """The statistics of one module at one time."""

    totals: GradientSyncTotals
    begin_ns: int  # of the synchronization that DDP timed; wall clock
    end_ns: int
    key: str  # the same on all ranks
    is_first: bool  # of the first module, and its process group has all ranks
    found: bool | None  # whether a search found parameters without a gradient; None where DDP does not search


class DdpModule:
    """One DDP module."""

    def __init__(self, module: Any, number: int, backwards: int | None) -> None:
        self.reference: Callable[[], Any] = weakref.ref(module)
        self.is_on_host = module.device.type == "cpu"
        self._number = number
        self._has_all_ranks = module.process_group.size() == sys.modules["torch"].distributed.get_world_size()
        self._iteration = 0
        self._begin_ns = 0
        self._backwards = backwards
        if self.is_on_host and hasattr(module, "_set_ddp_runtime_logging_sample_rate"):
            # DDP times one iteration of a hundred by default. On an accelerator each timing waits for the device.
            module._set_ddp_runtime_logging_sample_rate(1)

    def read(self, backwards: int | None) -> DdpReading | None:
        """Return the totals since the last call; None without a sync."""
        module = self.reference()
        data = {"iteration": 0} if module is None else module._get_ddp_logging_data()  # private
        iteration = data["iteration"]  # forward passes with synchronization on; a backward pass may not have followed
        if iteration < 1 or iteration == self._iteration:
            return None
        passes, self._iteration = iteration - self._iteration, iteration
        if backwards is not None and self._backwards is not None:  # forward passes may share a backward pass
            passes = min(passes, backwards - self._backwards)
        self._backwards = backwards
        begin_ns, begin_before_ns = data["backward_comm_time_start"], self._begin_ns
        self._begin_ns = begin_ns
        end_ns = data["backward_comm_time_end"]
        if not begin_ns or begin_ns == begin_before_ns:  # it was counted already
            return None
        if self.is_on_host:
            total_ns, hidden_ns = end_ns - begin_ns, data["backward_compute_time_end"] - begin_ns
        else:  # these are by the device's clock
            total_ns, hidden_ns = data["backward_comm_time"], data["backward_compute_comm_overlap_time"]
        if total_ns < 0:  # begin and end belong to different iterations
            return None
        count, hidden_ns = max(1, passes), min(max(0, hidden_ns), total_ns)
        totals = GradientSyncTotals(count, 1, count * total_ns, count * hidden_ns, self.is_on_host)
        key = f"ddp{self._number}:{iteration}"
        found = data["unused_parameter_size"] > 0 if data.get("find_unused_parameters") else None
        return DdpReading(totals, begin_ns, end_ns, key, self._has_all_ranks and not self._number, found)


NS_BETWEEN_READS: Final = 20_000_000  # a reading takes 5 to 11 us a module
MAX_UNDRAINED: Final = 4096  # readings


class GradientSync:
    """What the DDP modules of this process report, in ns; read on the training thread alone.

    DDP shows the times of a synchronization at the module's next forward pass.

    Args:
        sync_points: where synchronizations of all ranks are recorded.
        clock: the recorder's.
        wall_clock: DDP's, the time of day in ns.
        backwards: returns the number of backward passes so far; None if unknown.
    """

    def __init__(
        self,
        sync_points: SyncPoints,
        clock: Clock = time.perf_counter_ns,
        wall_clock: Clock = time.time_ns,
        backwards: Callable[[], int | None] = lambda: None,
    ) -> None:
        self.modules: list[DdpModule] = []
        self.why_not: str | None = None  # the reason if reading has stopped
        self._sync_points, self._clock, self._wall_clock, self._backwards = sync_points, clock, wall_clock, backwards
        self._registered = 0
        self._thread = 0
        self._next_read_ns = 0
        self._readings: deque[GradientSyncTotals] = deque(maxlen=MAX_UNDRAINED)
        self.start_run()

    def start_run(self) -> None:
        """Discard the data of a run before; its modules may still be used."""
        self._steps = StepAttribution()
        self.searched = UnusedSearch()
        self._idle_before = 0  # no step before this one, counted from the latest step, is compared
        self._readings.clear()

    def add_module(self, module: Any) -> None:
        """Read the statistics of ``module`` from now on."""
        if self.why_not is None:
            try:
                self.modules.append(DdpModule(module, self._registered, self._backwards()))
                self._registered += 1
            except Exception as error:
                self.stop(error)

    def add_search(self, seconds: float) -> None:
        """Add a search for parameters that a backward pass does not use."""
        searches, before_s, *rest = self.searched
        self.searched = UnusedSearch(searches + 1, before_s + seconds, *rest)

    def step_ended(self, step: int, end_ns: int) -> None:
        """Read the statistics if they are due after ``step``, counted from 0.

        They are due at intervals, and at each step that ranks compare.
        """
        if end_ns < self._next_read_ns and 0 < step < self._idle_before:
            return
        # Statistics read after step N may still describe step N-1.
        if end_ns >= self._next_read_ns or any(map(is_compared, (step, step + 1, max(0, step - 1)))):
            self._next_read_ns = end_ns + NS_BETWEEN_READS
            self._thread = get_ident()
            try:
                self._read_after(step, end_ns)
            except Exception as error:
                self.stop(error)
        else:
            self._idle_before = (step // BLOCK_STEPS + 1) * BLOCK_STEPS - 1

    def read(self) -> None:
        """Read the statistics now, if this is the thread that reads them."""
        if not self._thread or get_ident() == self._thread:
            try:
                self._store(self._read_modules(), ())
            except Exception as error:
                self.stop(error)

    def _read_after(self, step: int, end_ns: int) -> None:
        readings = self._read_modules()
        self._steps.step_ended(step, self._wall_clock() - (self._clock() - end_ns))
        for reading in readings:
            of_step = self._steps.add(reading.begin_ns, reading.totals.exposed_ns)
            if reading.totals.is_on_host and reading.is_first and is_compared(of_step):
                self._sync_points.add("ddp", of_step, reading.key, reading.begin_ns, reading.end_ns)
        complete = self._steps.pop_complete()
        are_on_host = all(module.is_on_host for module in self.modules)
        self._store(readings, [row for row in complete if is_compared(row[0])] if are_on_host else ())

    def _read_modules(self) -> list[DdpReading]:
        if any(module.reference() is None for module in self.modules):
            self.modules = [module for module in self.modules if module.reference() is not None]
        backwards = self._backwards()
        readings = [reading for module in self.modules if (reading := module.read(backwards)) is not None]
        found = [reading.found for reading in readings if reading.found is not None]
        searches, seconds, looked_at, found_before = self.searched
        self.searched = UnusedSearch(searches, seconds, looked_at + len(found), found_before + sum(found))
        return readings

    def _store(self, readings: list[DdpReading], of_steps: Iterable[tuple[int, int]]) -> None:
        new = _sum(reading.totals for reading in readings)._replace(of_steps=tuple(of_steps))
        if new.exchanges or new.of_steps:
            self._readings.append(new)

    def stop(self, error: Exception) -> None:
        """Read nothing more, because of ``error``."""
        self.modules = []
        self.why_not = f"{type(error).__name__}: {error}"

    def drain(self) -> GradientSyncTotals:
        """Return the totals since the last call.

        Single steps are those that ranks compare. If a step synchronizes several times, the sync that DDP timed stands
        for all.
        """
        return _sum([self._readings.popleft() for _ in range(len(self._readings))])

    def note(self) -> str | None:
        """Return why gradient synchronization is not measured; None if it is."""
        return None if self.why_not is None else f"DDP's gradient synchronization is not measured: {self.why_not}"


class StepAttribution:
    """Finds the step of a synchronization: the first step that ended after it began. Wall clock, in ns.

    Steps may be marked after they ended, so the synchronization of a step shows at its mark or at the next.
    """

    def __init__(self) -> None:
        self._ends: list[tuple[int, int]] = []  # (step, end) of consecutive steps
        self._complete_from = 0  # the first step of which every synchronization was read
        self._ns: Counter[int] = Counter()

    def step_ended(self, step: int, end_ns: int) -> None:
        """Record the end of ``step``. After a gap in the steps, earlier ones are dropped."""
        if not self._ends or self._ends[-1][0] != step - 1:
            self._complete_from = step + 1 if step else 0
            self._ends.clear()
            self._ns.clear()
        self._ends = [*self._ends[-2:], (step, end_ns)]

    def add(self, begin_ns: int, ns: int) -> int:
        """Add a synchronization and return its step."""
        step = next((step for step, end_ns in self._ends if begin_ns < end_ns), self._ends[-1][0] + 1)
        self._ns[step] += ns
        return step

    def pop_complete(self) -> list[tuple[int, int]]:
        """Return (step, ns) of the step before the latest, if all of it was read."""
        step = self._ends[-1][0] - 1
        return [(step, self._ns.pop(step, 0))] if step >= self._complete_from else []


def _sum(parts: Iterable[GradientSyncTotals]) -> GradientSyncTotals:
    parts = list(parts)
    return GradientSyncTotals(
        exchanges=sum(part.exchanges for part in parts),
        sampled=sum(part.sampled for part in parts),
        total_ns=sum(part.total_ns for part in parts),
        hidden_ns=sum(part.hidden_ns for part in parts),
        is_on_host=all(part.is_on_host for part in parts),
        of_steps=tuple(step for part in parts for step in part.of_steps),
    )
