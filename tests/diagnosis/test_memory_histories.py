"""Simulated histories of a process's memory: those that keep growing are reported, those that end are not.

Every history is one of a hundred, with the seed as its number: allocators round, free late and fragment; collections of
garbage make saw teeth; caches and data sets fill and stop.
"""

import random
from collections.abc import Callable
from dataclasses import replace
from math import exp

import pytest

from tests.support.recording import snapshot_of
from training_profiler.diagnosis.device import memory_growth
from training_profiler.model.machine import Level, MachineStats
from training_profiler.statistics.trend import Series

MIB = 2**20
History = Callable[[random.Random, float], float]  # chance and time, 0 to 1 -> MiB


def noisy(rng: random.Random, make: Callable[[float], float], count: int) -> list[float]:
    noise, teeth = rng.uniform(0, 20), rng.choice([0.0, rng.uniform(5, 60)])
    period = rng.randint(3, 25)
    return [make(i / count) + rng.gauss(0, noise) + teeth * (i % period) / period for i in range(count)]


def leak(rng: random.Random) -> list[float]:
    level, growth = rng.uniform(300, 3000), rng.uniform(0.3, 3.0)
    return noisy(rng, lambda t: level * (1 + growth * t), rng.randint(60, 600))


def leak_in_stairs(rng: random.Random) -> list[float]:
    level, growth, stairs = rng.uniform(300, 3000), rng.uniform(0.5, 3.0), rng.randint(25, 80)
    return noisy(rng, lambda t: level * (1 + growth * int(t * stairs) / stairs), rng.randint(200, 600))


def flat(rng: random.Random) -> list[float]:
    level = rng.uniform(300, 3000)
    return noisy(rng, lambda t: level, rng.randint(30, 600))


def one_rise(rng: random.Random) -> list[float]:
    level, height, at = rng.uniform(300, 3000), rng.uniform(0.2, 3.0), rng.uniform(0.05, 0.95)
    return noisy(rng, lambda t: level * (1 + height * (t > at)), rng.randint(30, 600))


def two_rises(rng: random.Random) -> list[float]:
    level, height = rng.uniform(300, 3000), rng.uniform(0.2, 2.0)
    first, second = sorted(rng.uniform(0.05, 0.95) for _ in range(2))
    return noisy(rng, lambda t: level * (1 + height * ((t > first) + (t > second))), rng.randint(60, 600))


def filling_cache(rng: random.Random) -> list[float]:
    level, height, pace = rng.uniform(300, 3000), rng.uniform(0.2, 3.0), rng.uniform(0.05, 0.35)
    return noisy(rng, lambda t: level * (1 + height * (1 - exp(-t / pace))), rng.randint(60, 600))


def rise_that_ends(rng: random.Random) -> list[float]:
    level, height, end = rng.uniform(300, 3000), rng.uniform(0.2, 3.0), rng.uniform(0.1, 0.8)
    return noisy(rng, lambda t: level * (1 + height * min(1.0, t / end)), rng.randint(60, 600))


def short_leak(rng: random.Random) -> list[float]:
    level, growth = rng.uniform(300, 1000), rng.uniform(150, 600)
    return noisy(rng, lambda t: level + growth * t, rng.randint(20, 45))


def slow_start(rng: random.Random) -> list[float]:
    """Libraries that are loaded late, and allocators that fill, in a run of seconds that ends before they do."""
    level, height, bend = rng.uniform(300, 600), rng.uniform(20, 60), rng.uniform(0.7, 1.0)
    count = rng.randint(12, 45)
    return [level + height * (i / count) ** bend + rng.gauss(0, 0.3) for i in range(count)]


def keeps_growing(values: list[float]) -> bool:
    series = Series()
    for i, value in enumerate(values):
        series.add(float(i), value * MIB)
    mean = sum(values) / len(values) * MIB
    level = Level(mean, max(values) * MIB, values[-1] * MIB)
    stats = MachineStats(len(values), ram_process_bytes=level, ram_growth=series.growth())
    return memory_growth(replace(snapshot_of({"backward_pass": 1.0}), machine=stats)) is not None


@pytest.mark.parametrize("history", [leak, leak_in_stairs, short_leak])
def test_leaks_are_found(history):
    found = sum(keeps_growing(history(random.Random(seed))) for seed in range(100))
    assert found >= 95


@pytest.mark.parametrize("history", [flat, one_rise, two_rises, filling_cache, rise_that_ends, slow_start])
def test_memory_that_stops_growing_is_not_reported(history):
    wrong = [seed for seed in range(100) if keeps_growing(history(random.Random(seed)))]
    assert len(wrong) <= 1, wrong
