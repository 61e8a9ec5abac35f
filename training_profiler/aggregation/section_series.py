"""The exclusive times of sections over the steps of a stretch, in bounded memory."""

import numpy as np

from training_profiler.model.interval import MOST_BLOCKS
from training_profiler.statistics.arrays import Ints


class SectionSeries:
    """Sums over blocks of consecutive steps. Blocks become twice as long whenever there are too many."""

    def __init__(self) -> None:
        self.steps = 0
        self.steps_a_block = 1
        self.sums_ns = np.zeros((0, 1), np.int64)  # a row per block, a column per section; the last may not be full

    def add(self, self_ns: Ints) -> None:
        """Add the steps that follow, shape (steps, sections); column 0 is time in no section."""
        count, width = self_ns.shape
        if not count:
            return
        end = self.steps + count
        while end > MOST_BLOCKS * self.steps_a_block:
            self._halve()
        blocks = -(-end // self.steps_a_block)
        self._make_room(blocks, width)
        first = self.steps // self.steps_a_block
        begins = np.maximum(np.arange(first, blocks) * self.steps_a_block - self.steps, 0)
        self.sums_ns[first:blocks, :width] += np.add.reduceat(self_ns, begins)
        self.steps = end

    def _make_room(self, blocks: int, width: int) -> None:
        known_blocks, known_width = self.sums_ns.shape
        if blocks > known_blocks or width > known_width:
            sums_ns = np.zeros((max(blocks, known_blocks), max(width, known_width)), np.int64)
            sums_ns[:known_blocks, :known_width] = self.sums_ns
            self.sums_ns = sums_ns

    def restore(self, sums_ns: Ints, steps: int, steps_a_block: int) -> None:
        """Take over the sums of a series that was written to a journal."""
        self.sums_ns, self.steps, self.steps_a_block = sums_ns, steps, steps_a_block

    def _halve(self) -> None:
        self.steps_a_block *= 2
        if len(self.sums_ns):
            self.sums_ns = np.add.reduceat(self.sums_ns, np.arange(0, len(self.sums_ns), 2))
