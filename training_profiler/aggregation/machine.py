"""Sums of the system monitor's samples; the sums of consecutive stretches add up."""

from collections.abc import Iterable
from typing import Any, Final

from training_profiler.base.units import NS_PER_S
from training_profiler.model.interval import MachineRecord
from training_profiler.model.snapshot import GpuStats, Growth, Level, MachineStats
from training_profiler.sampling.machine_sampler import MachineSample
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
                if quantity in OF_LOOP and not _is_since(sample.at_ns - weight * NS_PER_S, loop_begin_ns):
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
