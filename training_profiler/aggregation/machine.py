"""Sums of the system monitor's samples, and of garbage collections in training steps; those of stretches add up."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, cast

import numpy as np

from training_profiler.aggregation.step_totals import VARIES_AT_LEAST
from training_profiler.base.units import NS_PER_S
from training_profiler.model.interval import GarbageRecord, MachineRecord
from training_profiler.model.machine import ASKED, FULL, YOUNG, CollectionStats, GarbageStats
from training_profiler.model.snapshot import GpuStats, Growth, Level, MachineStats
from training_profiler.sampling.garbage_watch import Collection
from training_profiler.sampling.gpu import COUNTERS
from training_profiler.sampling.machine_sampler import MachineSample
from training_profiler.statistics.arrays import Ints, sums_by
from training_profiler.statistics.trend import Series

RAM: Final = "ram_own_bytes"  # of this process without its children, whose memory comes and goes with them
ALLOCATED: Final = ".allocated_bytes"
RECORDED: Final = "recorded"  # a profiler of torch is on; in settled steps alone, where it is none of ours
LEVELS: Final = tuple(name for name, kind in MachineStats.__annotations__.items() if kind == Level | None)
# Constant values, each with its type.
FACTS: Final = {
    name: float if kind == float | None else int
    for name, kind in MachineStats.__annotations__.items()
    if kind in (int, int | None, float | None) and name not in ("samples", "cpu_wait_known_s")
}
# Means over time of what a program does most before its first step, when it imports and builds: of the loop alone.
OF_LOOP: Final = ("page_faults", "pages_read", "cpu_kernel")
COUNTED_POWER: Final = "counted_power_w"  # of a device's counter of energy, weighted by time
UTILIZATION: Final = ".utilization"
LOOP_UTILIZATION: Final = "loop_utilization"  # the same of steps after the first, without capture windows
OF_STEPS: Final = frozenset(COUNTERS)  # of a stretch within settled steps alone
GPU_LEVELS: Final = tuple(name for name, kind in GpuStats.__annotations__.items() if kind == Level | None)
GPU_QUANTITIES: Final = frozenset({*GPU_LEVELS, COUNTED_POWER})


class MachineSums:
    """Sums of samples by quantity."""

    def __init__(self) -> None:
        self.samples = 0
        self.levels: dict[str, tuple[float, float, float, float]] = {}  # weight, weighted sum, largest, last
        self.series: dict[str, Series] = {}
        self.facts: dict[str, float | str] = {}  # constant values

    def record(self) -> MachineRecord:
        """Return the sums as a journal has them."""
        series = {quantity: series.points for quantity, series in self.series.items()}
        return MachineRecord(self.samples, self.levels, series, self.facts)

    def add_samples(
        self, samples: Iterable[MachineSample], loop_begin_ns: int | None = None, settled_ns: int | None = None
    ) -> None:
        """Add samples that follow those added before.

        Args:
            samples: in the order of time.
            loop_begin_ns: begin of the first step, if known.
            settled_ns: since when devices work as they do in most steps; None if they do not yet, or if a capture
                window slowed these steps.
        """
        for sample in samples:
            self.samples += 1
            self.facts.update(sample.facts)
            for quantity, value in sample.values.items():
                weight = sample.weights.get(quantity, 1.0)
                if quantity == RECORDED and not _is_since(sample.at_ns, settled_ns):
                    continue
                counted_from_ns = sample.at_ns - weight * NS_PER_S
                if quantity.rpartition(".")[2] in OF_STEPS and not _is_since(counted_from_ns, settled_ns):
                    continue
                if quantity in OF_LOOP and not _is_since(counted_from_ns, loop_begin_ns):
                    continue
                self._add_level(quantity, (weight, weight * value, value, value))
                # A reading of a device's utilization is the mean of a second at most.
                if quantity.endswith(UTILIZATION) and _is_since(sample.at_ns - NS_PER_S, settled_ns):
                    in_loop = f"{quantity.removesuffix(UTILIZATION)}.{LOOP_UTILIZATION}"
                    self._add_level(in_loop, (weight, weight * value, value, value))
                # Imports and the building of the model grow for as long as they take, which a busy machine stretches.
                is_before = loop_begin_ns is not None and sample.at_ns < loop_begin_ns
                if (quantity == RAM or quantity.endswith(ALLOCATED)) and not is_before:
                    self.series.setdefault(quantity, Series()).add(sample.at_ns / NS_PER_S, value)

    def add(self, later: "MachineSums") -> None:
        """Add the sums of the stretch that follows this one."""
        self.add_levels(later)
        for quantity, series in later.series.items():
            self.series.setdefault(quantity, Series()).add_points(series.points)

    def add_levels(self, later: "MachineSums") -> None:
        """Add the same without the series of memory, which growth needs."""
        self.samples += later.samples
        self.facts.update(later.facts)
        for quantity, level in later.levels.items():
            self._add_level(quantity, level)

    def _add_level(self, quantity: str, level: tuple[float, float, float, float]) -> None:
        weight, weighted, largest, _ = self.levels.get(quantity, (0.0, 0.0, level[2], 0.0))
        self.levels[quantity] = (weight + level[0], weighted + level[1], max(largest, level[2]), level[3])

    def stats(self, has_growth: bool = True) -> MachineStats | None:
        """Return the stats; None without samples. Computing growth takes a millisecond."""
        if not self.samples:
            return None
        wait_known_s, _, _, _ = self.levels.get("cpu_wait", (None, 0.0, 0.0, 0.0))
        named: dict[str, Any] = {name: self._level(name) for name in LEVELS}
        named |= {name: kind(self.facts[name]) for name, kind in FACTS.items() if name in self.facts}
        return MachineStats(
            samples=self.samples,
            cpu_wait_known_s=wait_known_s,
            ram_growth=self._growth(RAM) if has_growth else None,
            gpus=tuple(self._gpu(index, has_growth) for index in self._indexes()),
            **named,
        )

    def memory_quantities(self) -> list[tuple[int | None, str]]:
        """Return the quantities whose growth matters, each with the index of its device; None for the process."""
        return [*((index, f"gpu{index}{ALLOCATED}") for index in self._indexes()), (None, RAM)]

    def _indexes(self) -> list[int]:
        names = [fact.partition(".")[0] for fact in self.facts if fact.startswith("gpu") and fact.endswith(".name")]
        return sorted(int(name.removeprefix("gpu")) for name in names)

    def _gpu(self, index: int, has_growth: bool) -> GpuStats:
        own = f"gpu{index}."
        total = self.facts.get(own + "total_bytes")
        energy_s, energy_j, _, _ = self.levels.get(own + COUNTED_POWER, (None, None, 0.0, 0.0))
        levels = {name: self._level(own + name) for name in GPU_LEVELS}
        if self.levels.get(own + LOOP_UTILIZATION, (0.0,))[0] < 3:
            levels[LOOP_UTILIZATION] = None
        return GpuStats(
            index,
            str(self.facts[own + "name"]),
            None if total is None else int(total),
            allocated_growth=self._growth(own[:-1] + ALLOCATED) if has_growth else None,
            energy_j=energy_j,
            energy_s=energy_s,
            **levels,
        )

    def _level(self, quantity: str) -> Level | None:
        weight, weighted, largest, last = self.levels.get(quantity, (0.0, 0.0, 0.0, 0.0))
        return Level(weighted / weight, largest, last) if weight else None

    def _growth(self, quantity: str) -> Growth | None:
        series = self.series.get(quantity)
        return None if series is None else series.growth()


def _is_since(begin_ns: float, since_ns: int | None) -> bool:
    return since_ns is not None and begin_ns >= since_ns


KINDS: Final = (*YOUNG, FULL, ASKED)
MOST_WAITING: Final = 65_536  # collections, in case the clock stands still
# Columns. The longest is of those within steps, and its step is counted from 1.
COUNT, TOTAL_NS, STEP_COUNT, STEP_NS, STEPS, LONGEST_NS, LONGEST_STEP = range(7)
SUMMED: Final = slice(COUNT, LONGEST_NS)


class GarbageSums:
    """Sums over collections; rows are ``KINDS``. The sums of consecutive stretches add up."""

    def __init__(self) -> None:
        self.table = np.zeros((len(KINDS), LONGEST_STEP + 1), np.int64)
        self.steps = 0  # in which all collections are known
        # Of those after the first ten: their number, and the sums of s, x, s*s, s*x of step seconds s with x in them.
        self.coupling = np.zeros(5)

    def add(self, later: "GarbageSums") -> None:
        """Add the sums of another stretch."""
        self.table[:, SUMMED] += later.table[:, SUMMED]
        for row, longest in zip(self.table, later.table[:, LONGEST_NS:].tolist(), strict=True):
            row[LONGEST_NS:] = max(row[LONGEST_NS:].tolist(), longest)
        self.steps += later.steps
        self.coupling += later.coupling

    def add_steps(self, collected_ns: Ints, step_ns: Ints) -> None:
        """Add steps to the correlation: time in collections, and of the whole step."""
        step_s, collected_s = step_ns / NS_PER_S, collected_ns / NS_PER_S
        sums = (len(step_s), step_s.sum(), collected_s.sum(), step_s @ step_s, step_s @ collected_s)
        self.coupling += np.array(sums, np.float64)

    def add_in_steps(self, count: int, steps: Ints, kinds: Ints, ns: Ints) -> None:
        """Add so many complete steps, and the collections in them; ``steps`` are their numbers, counted from 0."""
        self.steps += count
        self.table[:, STEP_COUNT] += np.bincount(kinds, minlength=len(KINDS))
        self.table[:, STEP_NS] += sums_by(kinds, ns, len(KINDS))
        for kind in set(kinds.tolist()):  # the first call of np.unique would import numpy.ma
            of_kind = kinds == kind
            self.table[kind, STEPS] += len(set(steps[of_kind].tolist()))
            at = int(ns[of_kind].argmax())
            longest = [int(ns[of_kind][at]), int(steps[of_kind][at]) + 1]
            self.table[kind, LONGEST_NS:] = max(self.table[kind, LONGEST_NS:].tolist(), longest)

    def record(self) -> GarbageRecord | None:
        """Return the sums as a journal has them; None of no step and no collection."""
        count, *products = self.coupling.tolist()
        rows, coupling = cast(Any, self.table.tolist()), cast(Any, (int(count), *products))
        return GarbageRecord(self.steps, rows, coupling) if self.steps or self.table.any() else None

    @staticmethod
    def of(record: GarbageRecord) -> "GarbageSums":
        """Return the sums of a journal."""
        sums = GarbageSums()
        sums.steps = record.steps
        sums.table[:], sums.coupling[:] = record.rows, record.coupling
        return sums

    def stats(self) -> GarbageStats | None:
        """Return the stats; None where there was no collection."""
        rows = zip(KINDS, self.table.tolist(), strict=True)
        by_kind = {
            kind: CollectionStats(
                count, ns / NS_PER_S, in_steps, step_ns / NS_PER_S, steps, most_ns / NS_PER_S, longest
            )
            for kind, (count, ns, in_steps, step_ns, steps, most_ns, longest) in rows
            if count or in_steps
        }
        _, step_s, collected_s, _, _ = self.coupling.tolist()
        if not by_kind:
            return None
        return GarbageStats(self.steps, by_kind, collected_s / step_s if step_s else 0.0, self._explained())

    def _explained(self) -> float:
        """Return the part of the variance of step time: cov(step, collections) / var(step); see ``Coupling``."""
        count, *sums = self.coupling.tolist()
        if count < 2:
            return 0.0
        step_s, collected_s, squares, products = (value / count for value in sums)
        variance = squares - step_s**2
        if variance <= VARIES_AT_LEAST * step_s**2:
            return 0.0
        return min(1.0, max(0.0, (products - step_s * collected_s) / variance))


class GarbageAttribution:
    """Keeps collections until the events of their time arrive, and those of a step until it ends."""

    def __init__(self) -> None:
        self._waiting: list[Collection] = []
        self._unfinished = np.empty((0, 2), np.int64)  # kind and ns
        self._is_complete = False

    def add(self, collections: Sequence[Collection], is_complete: bool) -> None:
        """Keep collections, in time order, until their events arrive; ``is_complete`` if these are all of them."""
        self._is_complete = is_complete
        self._waiting += collections[: MOST_WAITING - len(self._waiting)]

    def discard_unfinished(self) -> None:
        """Forget the step in progress: it turned out not to be one."""
        self._unfinished = self._unfinished[:0]

    def attribute(
        self, sums: GarbageSums, rows_of: Callable[[Ints], Ints], complete: int, first_step: int, until_ns: int
    ) -> Ints | None:
        """Add the collections before ``until_ns`` to the sums.

        Return their time in each complete step, in ns; None if not all are known.

        Args:
            sums: the sums to add to.
            rows_of: returns the row of the step at each time; -1 for no step, ``complete`` for the unfinished step.
            complete: number of steps that have ended since the last call.
            first_step: number of the first of them, counted from 0.
            until_ns: the end of the events that have arrived.
        """
        waiting = np.array(self._waiting, np.int64).reshape(-1, 4)
        due = int(np.searchsorted(waiting[:, 0], until_ns))
        del self._waiting[:due]
        begins_ns, ends_ns, generations, is_asked = waiting[:due].T
        arrived = np.stack((np.where(is_asked, KINDS.index(ASKED), generations), ends_ns - begins_ns), axis=1)
        sums.table[:, COUNT] += np.bincount(arrived[:, 0], minlength=len(KINDS))
        sums.table[:, TOTAL_NS] += sums_by(arrived[:, 0], arrived[:, 1], len(KINDS))
        if not self._is_complete:
            self.discard_unfinished()
            return None
        rows = np.concatenate((np.zeros(len(self._unfinished), np.int64), rows_of(begins_ns)))
        known = np.concatenate((self._unfinished, arrived))
        self._unfinished = known[rows == complete]
        has_ended = (rows >= 0) & (rows < complete)
        rows, (kinds, ns) = rows[has_ended], known[has_ended].T
        sums.add_in_steps(complete, first_step + rows, kinds, ns)
        return sums_by(rows, ns, complete)
