"""Runs trainings side by side, block by block, in rounds of random order, until their differences are known."""

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import ceil
from typing import Any, Final

from training_profiler.model.bounds import Count
from training_profiler.trials.process import Block, EndedError, InapplicableError, TrialError, TrialProcess
from training_profiler.trials.statistics import AGAIN, UNCHANGED, Wave

LEAST_BLOCK_S: Final = 0.1  # shorter ones mostly measure how a training goes on after its stop
FEWEST_STEPS: Final = 2  # in a block: the first is not measured
SLOWEST: Final = 20  # times as long as expected, before a block counts as stuck
LEAST_PATIENCE_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class BlockSchedule:
    """How much is run."""

    warmup: Count  # steps
    rounds: Count
    block_steps: Count  # with the first, which is not measured
    step_s: float  # expected
    startup_s: float  # expected, with the warm-up

    @property
    def steps(self) -> int:
        """Steps of each training."""
        return self.warmup + self.rounds * self.block_steps

    def seconds(self, trainings: int, at_once: int) -> float:
        """Return how long a session takes at most, if changes make nothing slower."""
        return self.startup_s * ceil(trainings / at_once) + trainings * self.rounds * self.block_steps * self.step_s


def steps_of_a_block(step_s: float, cycle: int = 1, least_s: float = LEAST_BLOCK_S) -> int:
    """Return how many steps a block has, with the first, which is not measured.

    The others are a multiple of ``cycle``, the steps after which batches come in the same pattern.
    """
    least = max(FEWEST_STEPS - 1, ceil(least_s / step_s))
    return 1 + cycle * ceil(least / cycle)


@dataclass
class Outcome:
    """What a training of an interleaved session has shown."""

    losses: list[tuple[str, ...]] = field(default_factory=list)
    warmup_s: float | None = None
    failure: str | None = None
    applies: bool = True  # else the failure says what the change has not found
    seed: int | None = None

    def add(self, block: Block) -> None:
        """Add a block, or the warm-up."""
        self.losses += block.losses
        self.seed = block.seed
        self.warmup_s = self.warmup_s if block.warmup_s is None else block.warmup_s

    def fail(self, error: TrialError) -> None:
        """Keep why the training goes on no further."""
        self.failure, self.applies = str(error), not isinstance(error, InapplicableError)


class Interleaved:
    """Some trainings that run in turns.

    Args:
        start: starts the training of a name; its result has ``process`` and ``close``.
        schedule: how much is run.
        wave: gets the results.
        outcomes: gets what else each training shows.
        at_once: trainings that may start at the same time.
        on_progress: called with the part of the work that is done.
        must_end: whether the time is up.
        on_round: called after the start and after each round, when all trainings have run the same blocks.
    """

    def __init__(
        self,
        start: Callable[[str], Any],
        schedule: BlockSchedule,
        wave: Wave,
        outcomes: dict[str, Outcome],
        at_once: int = 1,
        on_progress: Callable[[float, str], None] = lambda part, doing: None,
        must_end: Callable[[], bool] = lambda: False,
        on_round: Callable[[], None] = lambda: None,
    ) -> None:
        self._start, self._schedule, self.wave = start, schedule, wave
        self._at_once, self._on_progress, self._must_end = at_once, on_progress, must_end
        self._on_round = on_round
        self.outcomes = outcomes
        self.trainings: dict[str, Any] = {}
        self._order = random.Random(wave.done)

    def run(self) -> None:
        """Run all rounds; a training that fails, or whose effect is known, runs no further.

        Raises:
            TrialError: an unchanged training failed.
        """
        try:
            self._start_all()
            while self.wave.open and not self._must_end():
                self._run_round()
            self.wave.pause()
        finally:
            for training in self.trainings.values():
                training.close()

    def _start_all(self) -> None:
        names, patience_s = self.wave.open, self._patience_s(self._schedule.startup_s)
        blocks: dict[str, Block | None] = {}
        for first in range(0, len(names), self._at_once):
            batch = names[first : first + self._at_once]
            self._on_progress(0.0, f"starts training {first + 1} of {len(names)}")
            for name in batch:
                self.trainings[name] = self._start(name)
            for name in batch:
                blocks[name] = self._receive(name, lambda process: process.wait_for_block(patience_s))
        self._add(blocks)

    def _add(self, blocks: Mapping[str, Block | None]) -> None:
        """Add the blocks of a whole round: one that was interrupted would leave losses of some trainings alone."""
        for name, block in blocks.items():
            if block is not None:
                self.outcomes[name].add(block)
        self._on_round()

    def _patience_s(self, expected_s: float) -> float:
        return max(LEAST_PATIENCE_S, SLOWEST * expected_s)

    def _run_round(self) -> None:
        names = [name for name in self.wave.open if name in self.trainings]
        self._order.shuffle(names)
        steps = self._schedule.block_steps
        patience_s = self._patience_s(steps * self._schedule.step_s)
        blocks = {name: self._receive(name, lambda process: process.run_block(steps, patience_s)) for name in names}
        self.wave.add_round({name: block.step_s for name, block in blocks.items() if block and block.step_s})
        self._add(blocks)
        self._on_progress(self.wave.done / self.wave.rounds, f"round {self.wave.done} of {self.wave.rounds}")
        for name in [name for name in self.trainings if name not in self.wave.open]:
            self.trainings.pop(name).close()

    def _receive(self, name: str, wait: Callable[[TrialProcess], Block]) -> Block | None:
        try:
            return wait(self.trainings[name].process)
        except TrialError as error:
            self.trainings.pop(name).close()
            if isinstance(error, EndedError) and self.wave.done:
                self.wave.end()
                return None
            if name in (UNCHANGED, AGAIN):
                raise
            self.outcomes[name].fail(error)
            self.wave.drop(name)
            return None
