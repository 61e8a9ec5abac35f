"""How much of a session fits into its time and into memory."""

from collections.abc import Sequence
from math import ceil
from typing import Final

import psutil

from training_profiler.trials.first_run import FirstRun, TryError
from training_profiler.trials.interleaved import LEAST_BLOCK_S, BlockSchedule, steps_of_a_block
from training_profiler.trials.statistics import FEWEST_ROUNDS
from training_profiler.trials.treatments.treatment import Treatment

MOST_ROUNDS: Final = 30
ENOUGH_ROUNDS: Final = 20  # of long blocks
LONG_BLOCK_S: Final = 0.25  # at least, where workers make the batches
SWITCH_S: Final = 0.03  # between two blocks
LEAST_WARMUP, MOST_WARMUP = 3, 20  # steps
MEMORY_PART: Final = 0.7  # of what is free, for the trainings that wait
MOST_AT_ONCE: Final = 4  # trainings that start at the same time


def at_once_of(first: FirstRun) -> int:
    """Return how many trainings start at the same time."""
    machine = first.snapshot.machine
    cores = 1.0 if machine is None or machine.cores is None else machine.cores
    return max(1, min(MOST_AT_ONCE, int(cores)))


def most_trainings(first: FirstRun) -> int:
    """Return how many trainings fit into memory at the same time; at least three.

    Raises:
        TryError: not even three do.
    """
    free = MEMORY_PART * psutil.virtual_memory().available
    fits = int(free / first.memory_bytes) if first.memory_bytes else 1000
    for gpu in () if first.snapshot.machine is None else first.snapshot.machine.gpus:
        held = gpu.held_bytes
        if held is not None and held.max and gpu.total_bytes:
            fits = min(fits, int(gpu.total_bytes / held.max))
    if fits < 3:
        raise TryError("memory has no room for three trainings at a time, which a comparison needs")
    return fits


def groups_of(treatments: Sequence[Treatment], most: int) -> list[Sequence[Treatment]]:
    """Return the changes in groups of nearly the same size, of which each fits into memory."""
    count = ceil(len(treatments) / most)
    size = ceil(len(treatments) / max(1, count))
    return [treatments[begin : begin + size] for begin in range(0, len(treatments), max(1, size))]


def schedule_of(first: FirstRun, trainings: int, at_once: int, seconds: float, cycle: int = 1) -> BlockSchedule | None:
    """Return what so many trainings can run in that time; None if it is too little to show anything.

    Several workers make several batches at about the same time, and then none for a while. So a block has whole
    cycles of ``cycle`` steps, as far as there is time: parts of cycles are either too fast or too slow.
    """
    assert first.snapshot.step is not None
    step_s, least = first.step_s, steps_of_a_block(first.step_s)
    whole = [steps_of_a_block(step_s, cycle, least_s) for least_s in (LONG_BLOCK_S, LEAST_BLOCK_S)]
    blocks = [*(whole if cycle > 1 else ()), least]
    warmup = max(LEAST_WARMUP, min(MOST_WARMUP, first.snapshot.step.warmup_count))
    startup_s = first.startup_s + max(first.snapshot.step.warmup_s, warmup * step_s)
    left_s = seconds - startup_s * ceil(trainings / at_once)
    steps = first.snapshot.steps - warmup - 1 if first.has_ended else None
    for block_steps in blocks:
        most = ENOUGH_ROUNDS if block_steps >= 2 * least else MOST_ROUNDS
        if steps is not None:
            block_steps = max(2, min(block_steps, _whole(steps // FEWEST_ROUNDS, cycle)))
            most = min(most, steps // block_steps)
        rounds = min(most, int(left_s / (trainings * (block_steps * step_s + SWITCH_S))))
        if rounds >= FEWEST_ROUNDS:
            return BlockSchedule(warmup, rounds, block_steps, step_s, startup_s)
    return None


def _whole(steps: int, cycle: int) -> int:
    """Return so many steps or fewer, of which all but the first are whole cycles, if there is one."""
    return 1 + (steps - 1) // cycle * cycle if steps > cycle else steps
